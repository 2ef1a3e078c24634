"""Mechanisms from a user's file, such as `my.py:Laplacian`. A file is code: it runs only if the user has named it."""

import dataclasses
import functools
import hashlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from attention import specs
from attention.errors import UsageError, unknown

ALLOWED = "ATTENTION_BENCH_CODE"  # of the environment, so that programs started by this one may run the files too
_FILE = re.compile(r"(?:--code=)?([^=:]+\.py)")


def is_of_file(name: str) -> bool:
    """Tells whether a name is that of a mechanism in a file, such as `my.py:Mine`."""
    return ".py:" in name


def allow(texts: Iterable[str]) -> None:
    """Allows Python files to be run as code.

    Args:
      texts: Such as the words of a command line. A file is named by `my.py:Laplacian` in a word, or by a word that is
        its path, perhaps after `--code=`.
    """
    texts = list(texts)
    files = [name.rpartition(":")[0] for text in texts for name in specs.of_files(text)]
    files += [path[1] for text in texts if (path := _FILE.fullmatch(text))]
    os.environ[ALLOWED] = os.pathsep.join(dict.fromkeys([*_allowed(), *(str(Path(file).absolute()) for file in files)]))


def _allowed() -> list[str]:
    return list(filter(None, os.environ.get(ALLOWED, "").split(os.pathsep)))


def load(name: str) -> Any:
    """Loads what a name such as `my.py:Laplacian` names, from the folder in which the program was started.

    Raises:
      UsageError: nobody has allowed the file to be run, there is none, it fails, or it has nothing of that name.
    """
    place, _, member = name.rpartition(":")
    path = _place(place)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Cannot read {place}, which {name} names; give the path of a Python file.") from error
    module = _module(path, text)
    if not hasattr(module, member):
        raise unknown(f"mechanism of {place}", member, [x for x, made in vars(module).items() if _is_own(module, made)])
    return getattr(module, member)


def _is_own(module: ModuleType, made: Any) -> bool:
    """Tells whether something may be a mechanism: a class of the file itself, or an instance such as a row."""
    return made.__module__ == module.__name__ if isinstance(made, type) else dataclasses.is_dataclass(made)


def _place(place: str) -> Path:
    """Finds the allowed file: of that path, or of that name where a run was made elsewhere."""
    path, allowed = Path(place).absolute(), list(map(Path, _allowed()))
    named = [file for file in allowed if file.name == path.name and file.is_file()]
    if path in named or (path in allowed and not named):
        return path
    if named:
        return named[-1]
    raise UsageError(
        f"{place} is code, which runs only if you name it: add --code={place} to the command, or in Python call "
        f"attention.defining.files.allow([{place!r}])."
    )


@functools.cache
def _module(path: Path, text: str) -> ModuleType:
    """Runs a file once for each text that it has had."""
    name = f"_{path.stem}_{digest(text)}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location(name, path))
    sys.modules[name] = module  # where dataclasses look for it
    try:
        exec(compile(text, str(path), "exec"), vars(module))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{path}, line {lines[-1]}," if lines else str(path)
        raise UsageError(f"{where} fails: {type(error).__name__}: {error}.") from error
    return module


def texts(names: Iterable[str]) -> dict[str, str]:
    """Reads the files of names such as `my.py:Mine`, by the file's own name; a run keeps them.

    Raises:
      UsageError: two files have one name.
    """
    places = {_place(name.rpartition(":")[0]) for name in names if is_of_file(name)}
    if len({path.name for path in places}) < len(places):
        raise UsageError(f"Files of mechanisms need different names: {', '.join(sorted(map(str, places)))}.")
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(places)}


def digest(text: str) -> str:
    """Shortens a text to 12 digits, which tell whether it has changed."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
