"""The files of a Hugging Face model, from a folder or the hub, and their arrays under PyTorch's names."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization, traverse_util

from attention.errors import UsageError
from models.files import at_home, read_json
from models.published.architectures import LEAVES, Arrays

CONFIG = "config.json"
GENERATION = "generation_config.json"
SAFETENSORS = "model.safetensors"
SHARDS = "model.safetensors.index.json"  # of weights in several files
MSGPACK = "flax_model.msgpack"
BIN = "pytorch_model.bin"

QUANTISED = ("F8", "F6", "F4")  # float types that mean little without their scales, which are not read

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def find(source: str, *names: str) -> Path:
    """Finds the first of the named files that a model has.

    Args:
      source: A folder, or a name on the hub such as `roberta-base`.
      names: Names of files in order of preference.

    Raises:
      UsageError: there is no such model or file, or the network or the hub's package is missing.
    """
    folder = at_home(source)
    if not folder.is_dir():
        return _download(source, names)
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise UsageError(f"The folder {source} has no {' or '.join(names)}, so no model can be read from it.")


def _download(name: str, files: tuple[str, ...]) -> Path:
    if not HUB_NAME.fullmatch(name):
        raise UsageError(f"There is no folder {name!r}; give one, or a name on the Hugging Face hub: roberta-base.")
    try:
        from huggingface_hub import errors, hf_hub_download
    except ImportError as error:
        raise UsageError(
            f"There is no folder {name!r}, and looking for it on the Hugging Face hub needs a package: "
            "pip install huggingface_hub."
        ) from error
    unreachable = None
    for file in files:
        try:
            return Path(hf_hub_download(name, file))
        except errors.LocalEntryNotFoundError as error:  # is an EntryNotFoundError too
            unreachable = error
        except errors.EntryNotFoundError:
            continue
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            raise UsageError(f"There is no folder {name!r}, and no such public model on the hub.") from error
        except OSError as error:
            unreachable = error
    if unreachable is None:
        raise UsageError(f"The model {name} on the hub has no {' or '.join(files)}.")
    raise UsageError(
        f"There is no folder {name!r}, and {' or '.join(files)} of that model cannot be fetched from the Hugging Face "
        "hub; check the network, or give a folder with the files."
    ) from unreachable


def read_config(source: str) -> dict[str, Any]:
    """Reads a model's `config.json`; raises UsageError as `find` does, or if the file is damaged."""
    return read_json(find(source, CONFIG), "give a model with an intact config")


def read_weights(source: str) -> Arrays:
    """Reads a model's weights under PyTorch's names, with dense kernels as (outputs, inputs).

    Args:
      source: See `find`. Safetensors are preferred to Flax, and Flax to PyTorch.

    Raises:
      UsageError: see `find`; or the file is damaged, or it needs PyTorch, which is not installed.
    """
    path = find(source, SAFETENSORS, SHARDS, MSGPACK, BIN)
    readers = {SAFETENSORS: _read_safetensors, MSGPACK: _read_msgpack, BIN: _read_bin}
    try:
        return _read_shards(source, path) if path.name == SHARDS else readers[path.name](path)
    except UsageError:
        raise
    except Exception as error:  # each format raises errors of its own
        raise UsageError(f"{path} cannot be read, so it may be damaged: {error}.") from error


def write(folder: Path, documents: Mapping[str, dict[str, Any]], weights: Arrays, texts: Mapping[str, str]) -> None:
    """Writes a folder that `transformers` loads: all of its files, or none.

    Args:
      folder: The folder, which is created if needed.
      documents: Contents of the JSON files by name: `config.json`, and optionally `generation_config.json`.
      weights: The weights under PyTorch's names.
      texts: Other files by name.

    Raises:
      UsageError: the folder has one of the files already, or cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    dumped = {name: json.dumps(content, ensure_ascii=False, indent=2) + "\n" for name, content in documents.items()}
    files: dict[str, Callable[[Path], object]] = {
        name: lambda path, text=text: path.write_text(text, encoding="utf-8")
        for name, text in (dumped | dict(texts)).items()
    }
    files[SAFETENSORS] = lambda path: save_file(contiguous, path, metadata={"format": "pt"})
    for name in files:
        if os.path.lexists(folder / name):  # even a broken link
            raise UsageError(f"The folder {folder} has a {name} already; choose another.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, write_to in files.items():
            write_to(folder / name)
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):  # there may be no folder
            for name in files:
                (folder / name).unlink(missing_ok=True)
        raise UsageError(f"The folder {folder} cannot be written ({error}); nothing was left in it.") from error


def _read_safetensors(path: Path) -> Arrays:
    try:
        from safetensors import safe_open
        from safetensors.flax import load_file
    except ImportError as error:
        raise UsageError(f"Reading {path} needs a package: pip install safetensors.") from error
    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118  it is no mapping
            kind = file.get_slice(name).get_dtype()
            if kind.startswith(QUANTISED):
                raise UsageError(f"{path} has {name} in numbers of type {kind}; give the model in bfloat16 or float32.")
    return {name: np.asarray(array) for name, array in load_file(path).items()}  # plain NumPy has no bfloat16


def _read_shards(source: str, index: Path) -> Arrays:
    names = read_json(index, "give another model").get("weight_map")
    files = set(names.values()) if isinstance(names, dict) and all(map(_is_name, names.values())) else set()
    if not files:
        raise UsageError(f"{index} names no files of weights; give another model.")
    return {name: array for file in sorted(files) for name, array in _read_safetensors(find(source, file)).items()}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and Path(value).name == value


def _read_msgpack(path: Path) -> Arrays:
    flat = traverse_util.flatten_dict(serialization.msgpack_restore(path.read_bytes()))
    names = {(*key[:-1], LEAVES.get(key[-1], key[-1])): key for key in flat}
    return {".".join(name): flat[key].T if key[-1] == "kernel" else flat[key] for name, key in names.items()}


def _read_bin(path: Path) -> Arrays:
    try:
        import torch
    except ImportError as error:
        raise UsageError(
            f"Reading {path} needs PyTorch: pip install torch, or convert the file to {SAFETENSORS}."
        ) from error
    weights = torch.load(path, map_location="cpu", weights_only=True)
    return {name: (x.float() if x.is_floating_point() else x).numpy() for name, x in weights.items()}
