"""RoBERTa's published weights into `models.masked_lm`, for any mechanism that the parts fit, and back out."""

import collections
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import traverse_util

from attention.errors import UsageError
from models import hugging_face, mechanisms
from models.masked_lm import MaskedLMConfig

# Our fields and theirs, for all that decides what a RoBERTa computes.
FIELDS = {
    "depth": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
    "norm_epsilon": "layer_norm_eps",
    "activation": "hidden_act",
    "padding_token": "pad_token_id",
    "token_types": "type_vocab_size",
}
DROPOUTS = {
    "embedding_dropout": "hidden_dropout_prob",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
FIXED = {"norm": "post", "positions": "learned", "attention_bias": True}
# Of their optional fields, the only values that this architecture has.
STANDARD = {"is_decoder": False, "position_embedding_type": "absolute", "tie_word_embeddings": True}
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "swish", "tanh": "tanh"}
OTHER_NAMES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "swish"}

MODULES = {
    "embed": "roberta.embeddings.word_embeddings",
    "positions": "roberta.embeddings.position_embeddings",
    "token_types": "roberta.embeddings.token_type_embeddings",
    "norm_embedding": "roberta.embeddings.LayerNorm",
    "head": "lm_head",
    "head/dense": "lm_head.dense",
    "head/norm": "lm_head.layer_norm",
}
OF_A_BLOCK = {
    "attention/query": "attention.self.query",
    "attention/key": "attention.self.key",
    "attention/value": "attention.self.value",
    "attention/out": "attention.output.dense",
    "norm_attention": "attention.output.LayerNorm",
    "mlp/up": "intermediate.dense",
    "mlp/down": "output.dense",
    "norm_mlp": "output.LayerNorm",
}
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
# Copies of other arrays, where they are saved at all.
TIED = {"lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.bias": "lm_head.bias"}

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Report:
    """What became of a checkpoint and of the parameters.

    Attributes:
      source: Where the checkpoint is.
      loaded: Parameters that are now the checkpoint's.
      cut: Those of them that took only the checkpoint's first rows: positions, for shorter sequences.
      skipped: Arrays of the checkpoint that the model has no place for.
      new: Parameters that the checkpoint does not have, left as they were.
    """

    source: str
    loaded: tuple[str, ...]
    cut: tuple[str, ...]
    skipped: tuple[str, ...]
    new: tuple[str, ...]

    def __str__(self) -> str:
        """A line for each kind, the layers' names drawn together."""
        lines = [f"From {self.source}: {len(self.loaded)} arrays loaded."]
        for title, names in (("First rows only", self.cut), ("Skipped", self.skipped), ("New", self.new)):
            if names:
                lines.append(f"{title}: {_drawn_together(names)}.")
        return "\n".join(lines)


def _drawn_together(names: tuple[str, ...]) -> str:
    counts = collections.Counter(re.sub(r"\d+", "*", name) for name in names)
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


@dataclasses.dataclass(frozen=True)
class Described:
    """A checkpoint's architecture, as this project says it.

    Attributes:
      fields: Those of `MaskedLMConfig` that the checkpoint gives, rates of dropout among them.
      vocabulary: Number of tokens.
      length: ℓ, the longest sequence.
    """

    fields: dict[str, Any]
    vocabulary: int
    length: int


def describe(source: str) -> Described:
    """What model a checkpoint is of: `MaskedLM(MaskedLMConfig(**fields, …), vocabulary, length)`.

    Args:
      source: A Hugging Face folder, or a name on the hub.

    Raises:
      UsageError: it cannot be read, or is no RoBERTa, or one with parts that the published ones do not have.
    """
    theirs = hugging_face.read_config(source)
    needed = {*FIELDS.values(), *DROPOUTS.values(), "model_type", "vocab_size", "max_position_embeddings"}
    if missing := sorted(needed - {name for name, value in theirs.items() if value is not None}):
        raise UsageError(f"The config.json of {source} lacks {', '.join(missing)}.")
    if theirs["model_type"] != "roberta":
        raise UsageError(f"{source} is a model of type {theirs['model_type']!r}; only 'roberta' can be loaded.")
    for name, only in STANDARD.items():
        if theirs.get(name, only) != only:
            raise UsageError(f"{source} has {name}={theirs[name]!r}; only {only!r} can be loaded.")
    fields = FIXED | {ours: theirs[name] for ours, name in (FIELDS | DROPOUTS).items()}
    activation = fields["activation"]
    if activation not in ACTIVATIONS | OTHER_NAMES:
        raise UsageError(f"{source} has hidden_act={activation!r}; choose one with {', '.join(ACTIVATIONS)}.")
    fields["activation"] = (ACTIVATIONS | OTHER_NAMES)[activation]
    length = theirs["max_position_embeddings"] - theirs["pad_token_id"] - 1
    return Described(fields, theirs["vocab_size"], length)


def load(source: str, config: MaskedLMConfig, params: Params) -> tuple[dict[str, Any], Report]:
    """Puts a checkpoint's weights in the place of freshly initialised ones, wherever the model has their like.

    Projections that the mechanism has in another form, and what else it adds, stay as they are initialised.

    Args:
      source: A Hugging Face folder, or a name on the hub.
      config: What the model is.
      params: Of `MaskedLM`, without the collection's name.

    Returns:
      Parameters of the same shapes, types and shardings, and what was loaded, skipped and new.

    Raises:
      UsageError: the checkpoint cannot be read, is of another architecture, or is not whole.
    """
    fresh = traverse_util.flatten_dict(params, sep="/")
    rows = {name: len(fresh[f"{name}/embedding"]) for name in ("embed", "positions") if f"{name}/embedding" in fresh}
    check_fit(source, config, rows["embed"], rows.get("positions", 0) - config.padding_token - 1)
    arrays = _canonical(source, hugging_face.read_weights(source))
    headless = not any(name.startswith("lm_head.") for name in arrays)
    named = {path: _their_name(path) for path in fresh}
    new = [path for path, name in named.items() if not name or (headless and name.startswith("lm_head."))]
    loaded = {path: name for path, name in named.items() if path not in new}
    if missing := sorted(set(loaded.values()) - set(arrays)):
        raise UsageError(f"{source} lacks {_drawn_together(tuple(missing))}; it is not whole.")
    values = {path: _to_ours(source, path, arrays[name], fresh[path]) for path, name in loaded.items()}
    cut = [path for path, name in loaded.items() if arrays[name].size > fresh[path].size]
    skipped = set(arrays) - set(loaded.values())
    report = Report(source, *(tuple(sorted(names)) for names in (loaded, cut, skipped, new)))
    return traverse_util.unflatten_dict(fresh | values, sep="/"), report


def export(folder: str, config: MaskedLMConfig, params: Params) -> None:
    """Writes a folder that `transformers.RobertaForMaskedLM.from_pretrained` loads.

    Args:
      folder: Where; it is made.
      config: What the model is.
      params: Of `MaskedLM`, without the collection's name.

    Raises:
      UsageError: RoBERTa has no such parts, or the folder holds a model already or cannot be written.
    """
    if set(mechanisms.resolve(config.attention, config.depth)) != {mechanisms.MECHANISMS["dot_product"]}:
        raise UsageError(f"Only dot_product can be exported: transformers' RoBERTa has no {config.attention!r}.")
    for field, only in FIXED.items():
        if getattr(config, field) != only:
            raise UsageError(f"Only model.{field}={only!r} can be exported, but it is {getattr(config, field)!r}.")
    flat = {path: np.asarray(value) for path, value in traverse_util.flatten_dict(params, sep="/").items()}
    weights = {_their_name(path): _to_theirs(path, value) for path, value in flat.items()}
    theirs = {name: getattr(config, ours) for ours, name in (FIELDS | DROPOUTS).items()}
    theirs["hidden_act"] = {ours: name for name, ours in ACTIVATIONS.items()}[config.activation]
    theirs |= STANDARD | {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"]}
    theirs |= {
        "vocab_size": len(flat["embed/embedding"]),
        "max_position_embeddings": len(flat["positions/embedding"]),
    }
    hugging_face.write(Path(folder).expanduser(), theirs, weights)


def check_fit(source: str, config: MaskedLMConfig, vocabulary: int, length: int) -> None:
    """Whether a checkpoint's weights fit a model, as far as its `config.json` says.

    Args:
      source: A Hugging Face folder, or a name on the hub.
      config: What the model is.
      vocabulary: Its number of tokens.
      length: ℓ, its longest sequence.

    Raises:
      UsageError: they do not, with both values of everything in which the two differ; or as `describe`.
    """
    described = describe(source)
    theirs = {f"model.{field}": described.fields[field] for field in (*FIELDS, *FIXED)}
    ours = {f"model.{field}": getattr(config, field) for field in (*FIELDS, *FIXED)}
    theirs["the vocabulary"], ours["the vocabulary"] = described.vocabulary, vocabulary
    wrong = [
        f"{field} is {ours[field]!r} but there {theirs[field]!r}" for field in ours if ours[field] != theirs[field]
    ]
    if not wrong:
        wrong = [f"the length is {length} but there {described.length}"] if length > described.length else []
    if wrong:
        raise UsageError(f"The model does not fit {source}: {'; '.join(wrong)}.")


def _canonical(source: str, arrays: hugging_face.Arrays) -> hugging_face.Arrays:
    """With the names of a whole masked language model, and without copies of tied arrays."""
    if not any(name.startswith("roberta.") for name in arrays):  # of a model without a head
        arrays = {name if name.startswith("lm_head.") else f"roberta.{name}": value for name, value in arrays.items()}
    for copy, original in TIED.items():
        value = arrays.pop(copy, None)
        if value is not None and not np.array_equal(value, arrays.setdefault(original, value)):
            raise UsageError(f"{source} has a {copy} of its own, but the model ties it to {original}.")
    return arrays


def _their_name(path: str) -> str:
    """The checkpoint's name of one of our parameters; '' where RoBERTa has no such thing."""
    module, _, leaf = path.rpartition("/")
    block = re.fullmatch(r"block_(\d+)/(.+)", module)
    if block and block[2] in OF_A_BLOCK:
        return f"roberta.encoder.layer.{block[1]}.{OF_A_BLOCK[block[2]]}.{LEAVES[leaf]}"
    return f"{MODULES[module]}.{LEAVES[leaf]}" if module in MODULES else ""


def _to_ours(source: str, path: str, array: np.ndarray, fresh: jax.Array) -> jax.Array:
    """An array of the checkpoint in the shape of ours: transposed kernels, heads as an axis, as many positions."""
    if path == "positions/embedding":
        array = array[: len(fresh)]
    shape = _to_theirs(path, np.broadcast_to(np.zeros(()), fresh.shape)).shape
    if array.shape != shape:
        raise UsageError(f"{_their_name(path)} of {source} must have the shape {shape}, but it has {array.shape}.")
    array = array.T if path.endswith("/kernel") else array
    return jax.device_put(array.reshape(fresh.shape).astype(fresh.dtype), fresh.sharding)


def _to_theirs(path: str, array: np.ndarray) -> np.ndarray:
    """One of our arrays as PyTorch has it: dense weights as (outputs, inputs), heads side by side."""
    if path.endswith("/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if path.endswith("/kernel"):
        return array.reshape(len(array), -1).T
    return array if path.endswith("/embedding") else array.reshape(-1)
