"""Loads published weights into our models, with any mechanism whose arrays fit, and exports ours.

`models.masked_lm` takes BERT, RoBERTa and ModernBERT; `models.vit` ViT; `models.encoder_decoder` Marian and T5; and
`models.gpt` the decoders: GPT-2, BLOOM, Llama, DiffLlama, Mistral, Qwen, Gemma, DeepSeek-V2 and Mamba-2.
"""

import collections
import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import traverse_util

from attention.errors import UsageError
from attention.types import Size, Valid, check, valid_of
from models.files import at_home
from models.gpt import GPTConfig
from models.layers.positions import rotary_layers, sinusoids_in_halves
from models.mechanisms import resolve
from models.published import hugging_face
from models.published.architectures import ACTIVATION_NAMES, ACTIVATIONS, Architecture, Arrays
from models.published.bert import BERT, ROBERTA
from models.published.bloom import BLOOM
from models.published.decoders import DECODERS
from models.published.deepseek import DEEPSEEK
from models.published.diffllama import DIFFLLAMA
from models.published.gpt2 import GPT2
from models.published.mamba2 import MAMBA2
from models.published.marian import MARIAN
from models.published.modernbert import MODERNBERT
from models.published.t5 import T5
from models.published.vit import VIT
from models.surgery import exchange
from models.transformer import TransformerConfig

ARCHITECTURES = (ROBERTA, BERT, MODERNBERT, VIT, MARIAN, T5, GPT2, BLOOM, *DECODERS, DIFFLLAMA, DEEPSEEK, MAMBA2)
EXPERTS = ("gpt_oss", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "olmoe")
REFUSED = {
    **dict.fromkeys(EXPERTS, "its MLPs are experts, and our blocks have one MLP each"),
    "deit": "its distillation token has a head of its own; a DeiT without it has the type 'vit'",
}
OTHER_NAMES = {"gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "swish": "swish"}

POSITIONS = ("positions/embedding", "positions/table")

Params = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Which arrays of a checkpoint were loaded into which parameters.

    Attributes:
      source: The folder or name of the checkpoint.
      loaded: Parameters that were loaded.
      cut: Loaded parameters that took only the first rows of the checkpoint's array: positions of shorter sequences.
      skipped: Arrays of the checkpoint that the model does not have.
      new: Parameters that the checkpoint does not have, which kept their values.
      carried: Loaded parameters of layers with another mechanism than the checkpoint's.
      regrouped: Loaded parameters that were repeated or averaged for another number of key and value heads.
    """

    source: str
    loaded: tuple[str, ...]
    cut: tuple[str, ...]
    skipped: tuple[str, ...]
    new: tuple[str, ...]
    carried: tuple[str, ...] = ()
    regrouped: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Writes a line for each kind, with the names of like layers merged."""
        lines = [f"From {self.source}: {len(self.loaded)} arrays loaded."]
        parts = {
            "First rows only": self.cut,
            "Carried over to other mechanisms": self.carried,
            "Repeated or averaged for another number of heads": self.regrouped,
            "Skipped": self.skipped,
            "New": self.new,
        }
        for title, names in parts.items():
            if names:
                lines.append(f"{title}: {summarised(names)}.")
        return "\n".join(lines)


def summarised(names: Sequence[str]) -> str:
    """Joins parameters' names with commas, and merges those of like layers."""
    counts = collections.Counter(re.sub(r"\d+", "*", name) for name in names)
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in counts.items())


@dataclasses.dataclass(frozen=True)
class Described:
    """A checkpoint's architecture in terms of our configs.

    Attributes:
      architecture: The entry of the table.
      fields: The fields of our model's config that the checkpoint determines, and the rates of dropout.
      vocabulary: Size of the vocabulary, in Marian and T5 of source and target; in ViT the number of classes.
      length: ℓ, the longest sequence that the model supports; in ViT the number of tokens.
      special: In Marian and T5 the ids of `pad`, `start` (the decoder's first token) and `end`.
    """

    architecture: Architecture
    fields: dict[str, Any]
    vocabulary: int
    length: int
    special: dict[str, int]


def describe(source: str, architectures: Sequence[Architecture] = ARCHITECTURES) -> Described:
    """Reads the architecture of a checkpoint.

    The model is `MaskedLM(MaskedLMConfig(**fields, …), vocabulary, length)` for BERT, RoBERTa and ModernBERT,
    `ViT(ViTConfig(**fields, …), vocabulary, length)` for ViT, for Marian and T5
    `EncoderDecoder(EncoderDecoderConfig(**fields, …), vocabulary, vocabulary, length, length)`, and for the others
    `GPT(GPTConfig(**fields, …), vocabulary, length)`.

    Args:
      source: A Hugging Face folder, or a name on the hub.
      architectures: The architectures that it may have.

    Raises:
      UsageError: it cannot be read, has none of these architectures, or differs from the published models.
    """
    theirs = hugging_face.read_config(source)
    known = {architecture.model_type: architecture for architecture in architectures}
    kind = theirs.get("model_type")
    if isinstance(kind, str) and kind in REFUSED:
        raise UsageError(f"{source} is a model of type {kind!r}, which cannot be loaded: {REFUSED[kind]}.")
    if kind is not None and kind not in list(known):  # it may be anything
        only = ", ".join(map(repr, known))
        raise UsageError(f"{source} is a model of type {kind!r}; only {only} can be loaded.")
    architecture = known.get(kind, architectures[0])
    try:
        theirs = architecture.complete(theirs)
        _check_described(source, architecture, theirs)
        _check_values(source, architecture, theirs)
        fields = _fields(source, architecture, theirs)
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:  # from fields that are read together
        raise UsageError(f"The config.json of {source} has an invalid value ({error!r}).") from error
    length = theirs[architecture.length] - architecture.unused_positions(fields)
    special = {token: theirs[name] for token, name in architecture.special.items()}
    return Described(architecture, fields, theirs[architecture.vocabulary], length, special)


def _fields(source: str, architecture: Architecture, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Reads our fields of a `config.json`."""
    ours = architecture.fields | architecture.dropouts
    fields = dict.fromkeys(architecture.config.STACKS, "dot_product") | architecture.fixed
    fields |= {field: theirs[name] for field, name in ours.items()} | architecture.read(theirs)
    activation = fields["activation"]
    if activation not in ACTIVATIONS | OTHER_NAMES:
        name = architecture.fields.get("activation", "hidden_act")
        raise UsageError(f"{source} has {name}={activation!r}; choose one with {', '.join(ACTIVATIONS)}.")
    return fields | {"activation": (ACTIVATIONS | OTHER_NAMES)[activation]}


def load(source: str, config: TransformerConfig, params: Params) -> tuple[dict[str, Any], LoadReport]:
    """Replaces initial parameters by a checkpoint's weights where the model has the same parameters.

    Parameters that a mechanism adds, or has in another shape, keep their initial values. Keys and values for another
    number of heads are repeated or averaged; see `models.surgery.exchange.regrouped`.

    Args:
      source: A Hugging Face folder, or a name on the hub.
      config: The model's config: `MaskedLMConfig`, `ViTConfig`, `EncoderDecoderConfig` or `GPTConfig`.
      params: The model's parameters, without the name of their collection.

    Returns:
      Parameters of the same shapes, types and shardings, and a report.

    Raises:
      UsageError: the checkpoint cannot be read, is of another architecture, or is incomplete.
    """
    architecture = describe(source, architectures_of(config)).architecture
    fresh = traverse_util.flatten_dict(params, sep="/")
    length = max(0, _positions(fresh) - architecture.unused_positions(vars(config)))
    there = check_fit(source, config, _outputs(fresh), length)
    arrays = _canonical(source, architecture, config, hugging_face.read_weights(source))
    headless = there.vocabulary != _outputs(fresh) or not any(name.startswith(architecture.head) for name in arrays)
    named = {path: architecture.array(path) for path in fresh}
    new = [path for path, name in named.items() if not name or (headless and name.startswith(architecture.head))]
    loaded = {path: name for path, name in named.items() if path not in new}
    if missing := sorted(set(loaded.values()) - set(arrays)):
        raise UsageError(f"{source} lacks {summarised(missing)}; it is incomplete.")
    source_config = _mechanisms_of(there, config)
    layers, values = exchange.exchanged(config, source_config), {}
    states = {layer: getattr(row.score, "state", 0) for layer, row in source_config.by_path().items()}
    carried = [path for path in loaded if path.startswith(tuple(f"{layer}/" for layer in layers))]
    for path, name in loaded.items():
        array = arrays[name][: _positions(fresh)] if path in POSITIONS else arrays[name]
        if not jnp.issubdtype(array.dtype, jnp.floating):
            raise UsageError(f"{name} of {source} has numbers of type {array.dtype}; give the model in float32.")
        there = fresh[path].shape
        if path in carried:
            if _of_state(path, states) not in (0, there[-1]):
                continue
            there = _shape_there(path, array, there)
        if array.shape != (shape := _to_theirs(path, np.broadcast_to(np.zeros(()), there)).shape):
            if path in carried:
                continue
            raise UsageError(f"{name} of {source} must have the shape {shape}, but it has {array.shape}.")
        values[path] = _to_ours(path, array, there, fresh[path])
    new, loaded = [*new, *(loaded.keys() - values)], {path: loaded[path] for path in values}
    carried = [path for path in carried if path in values]
    cut = [path for path in POSITIONS if path in loaded and arrays[loaded[path]].size > fresh[path].size]
    regrouped = [path for path in carried if arrays[loaded[path]].size != fresh[path].size]
    skipped = set(arrays) - set(loaded.values())
    lists = (loaded, cut, skipped, new, carried, regrouped)
    report = LoadReport(source, *(tuple(sorted(names)) for names in lists))
    return traverse_util.unflatten_dict(fresh | values, sep="/"), report


def original(source: str, config: TransformerConfig) -> TransformerConfig:
    """Replaces the mechanisms of a model's config by those of a checkpoint."""
    return _mechanisms_of(describe(source, architectures_of(config)), config)


def _mechanisms_of(described: Described, config: TransformerConfig) -> TransformerConfig:
    return dataclasses.replace(config, **{spec: described.fields[spec] for spec in config.STACKS})


def export(
    folder: str,
    config: TransformerConfig,
    params: Params,
    special: Mapping[str, int] | None = None,
    length: int = 512,
    texts: Callable[[Architecture], Mapping[str, str]] = lambda architecture: {},
) -> None:
    """Writes a folder that `from_pretrained` of `transformers` loads, as the first architecture that fits.

    Args:
      folder: The folder, which is created if needed.
      config: The model's config: `MaskedLMConfig`, `ViTConfig`, `EncoderDecoderConfig` or `GPTConfig`.
      params: The model's parameters, without the name of their collection.
      special: For Marian and T5, the ids of the tokeniser's special tokens by name: `pad`, `start` and `end`.
      length: The longest sequence, unless the number of learned positions decides it.
      texts: Writes other files by name, such as a card, given the architecture.

    Raises:
      UsageError: no architecture fits the config, an id is missing, or the folder holds a model already or cannot be
        written.
    """
    special = special or {}
    flat = {path: np.asarray(value) for path, value in traverse_util.flatten_dict(params, sep="/").items()}
    architecture = _exportable(config, special, flat)
    named = {path: architecture.array(path) for path in flat}
    weights = {name: _to_theirs(path, flat[path]) for path, name in named.items() if name}
    theirs = _config_json(architecture, config) | {
        architecture.vocabulary: _outputs(flat),
        architecture.length: _positions(flat) or length,
    }
    theirs |= {name: theirs[original] for name, original in architecture.same.items()}
    theirs |= {name: special[token] for token, name in architecture.special.items()}
    finished = architecture.finish(theirs, {path: array.shape for path, array in flat.items()})
    documents = {hugging_face.CONFIG: dict(finished)}
    if architecture.generation:
        documents[hugging_face.GENERATION] = architecture.generation(special, length)
    hugging_face.write(at_home(folder), documents, architecture.join(weights, theirs), texts(architecture))


def check_fit(
    source: str, config: TransformerConfig, vocabulary: int, length: int, special: Mapping[str, int] | None = None
) -> Described:
    """Reads a checkpoint's architecture, and checks its `config.json` against a model.

    Args:
      source: A Hugging Face folder, or a name on the hub.
      config: The model's config: `MaskedLMConfig`, `ViTConfig`, `EncoderDecoderConfig` or `GPTConfig`.
      vocabulary: Size of the model's vocabulary, or its number of classes.
      length: ℓ, the model's longest sequence.
      special: Ids of the tokeniser's special tokens by name, if they must match the checkpoint too.

    Raises:
      UsageError: they differ; the error gives both values of every difference. Or see `describe`.
    """
    described = describe(source, architectures_of(config))
    architecture = described.architecture
    compared = described.fields.keys() - architecture.dropouts.keys() - config.STACKS.keys()
    compared = sorted(field for field in compared if _matters(field, config))
    pairs = {f"model.{field}": (getattr(config, field), described.fields[field]) for field in compared}
    if architecture.new_head:
        pairs["the number of tokens"] = length, described.length
    else:
        pairs["the vocabulary"] = vocabulary, described.vocabulary
    if special is not None:
        pairs |= {f"the token {name}": (special.get(name), token) for name, token in described.special.items()}
    wrong = [f"{what} is {ours!r} but there {theirs!r}" for what, (ours, theirs) in pairs.items() if ours != theirs]
    if not wrong and config.positions == "learned" and length > described.length:
        wrong = [f"the length is {length} but there {described.length}"]
    if wrong:
        raise UsageError(f"The model does not fit {source}: {'; '.join(wrong)}.")
    return described


def architectures_of(config: Any) -> list[Architecture]:
    """Lists the published architectures that a model may have; raises UsageError if there is none."""
    known = [architecture for architecture in ARCHITECTURES if isinstance(config, architecture.config)]
    if not known:
        titles = ", ".join(architecture.title for architecture in ARCHITECTURES)
        raise UsageError(f"Published weights are those of {titles}, but model.name is {config.name!r}.")
    return known


def _outputs(flat: Mapping[str, Any]) -> int:
    return len(flat["embed/embedding"]) if "embed/embedding" in flat else flat["head/kernel"].shape[-1]


def _positions(flat: Mapping[str, Any]) -> int:
    return next((flat[path].shape[-2] for path in POSITIONS if path in flat), 0)


def _check_described(source: str, architecture: Architecture, theirs: dict[str, Any]) -> None:
    """Raises UsageError unless a `config.json` is complete and fits the architecture."""
    tables = (architecture.fields, architecture.dropouts, architecture.special)
    needed = {name for table in tables for name in table.values()}
    needed |= {"model_type", architecture.vocabulary, architecture.length}
    if missing := sorted(needed - {name for name, value in theirs.items() if value is not None}):
        raise UsageError(f"The config.json of {source} lacks {', '.join(missing)}.")
    only = architecture.standard | {name: theirs[original] for name, original in architecture.same.items()}
    for name, value in only.items():
        if theirs.get(name, value) != value:
            raise UsageError(f"{source} has {name}={theirs[name]!r}; only {value!r} can be loaded.")


def _exportable(config: TransformerConfig, special: Mapping[str, int], flat: Mapping[str, np.ndarray]) -> Architecture:
    """Chooses the architecture that a model is exported as, the first of those that fit."""
    differences = {}
    for architecture in architectures_of(config):
        with contextlib.suppress(UsageError):  # it cannot express the config
            differences[architecture.title] = architecture, _differences(architecture, config, flat)
    if not differences:
        raise UsageError("transformers has no model with these positions, so it cannot be exported.")
    closest, wrong = min(differences.values(), key=lambda pair: len(pair[1]))
    if wrong:
        raise UsageError(f"transformers has no such model; {closest.title} is closest, but {'; '.join(wrong)}.")
    if missing := [token for token in closest.special if token not in special]:
        raise UsageError(
            f"An exported {closest.title} needs the ids of its special tokens; give that of {', '.join(missing)}."
        )
    return closest


def _matters(field: str, config: TransformerConfig) -> bool:
    """Tells whether a field changes what the model computes: a GPT's tied output has no bias."""
    return not (field == "output_bias" and isinstance(config, GPTConfig) and config.tied_output)


def _differences(architecture: Architecture, config: TransformerConfig, flat: Mapping[str, np.ndarray]) -> list[str]:
    """Lists how a model differs from what it would be after an export as an architecture."""
    theirs = _fields("The model", architecture, _config_json(architecture, config))
    compared = theirs.keys() - architecture.dropouts.keys()
    ours = {field: getattr(config, field) for field in sorted(compared) if _matters(field, config)}
    for spec, depth in config.STACKS.items():
        if resolve(theirs[spec], getattr(config, depth)) == config.mechanisms[spec]:
            theirs[spec] = ours[spec]
    if any(config.rotaries) and rotary_layers(theirs["positions"], len(config.rotaries)) == config.rotaries:
        theirs["positions"] = ours["positions"]
    absent = [path for path in flat if not architecture.array(path)]
    lost = tuple(path for path in absent if np.any(flat[path] != architecture.absent.get(path.partition("/")[2], 0.0)))
    fields = [field for field in ours if ours[field] != theirs[field]]
    bare = not config.mlp and architecture.fixed.get("mlp") != 0
    return [
        *(f"model.{field} is {ours[field]!r}, there {theirs[field]!r}" for field in fields),
        *(["model.mlp is 0, and blocks there have an MLP"] if bare else []),
        *([f"it lacks {summarised(lost)}"] if lost else []),
    ]


def _check_values(source: str, architecture: Architecture, theirs: dict[str, Any]) -> None:
    """Raises UsageError if a field of a `config.json` has a value that our field cannot have."""
    valids = valid_of(architecture.config)
    for field, name in (architecture.fields | architecture.dropouts).items():
        names = valids[field].kind is str  # the names of activations are translated first
        (Valid(str) if names else valids[field]).check(theirs[name], f"{name} of {source}")
        if field == "mlp" and not theirs[name]:
            raise UsageError(f"{source} has {name}=0; only blocks with an MLP can be loaded.")
    for name in (architecture.vocabulary, architecture.length, *architecture.special.values()):
        check(Size, theirs[name], f"{name} of {source}")


def _config_json(architecture: Architecture, config: TransformerConfig) -> dict[str, Any]:
    """Writes a model's `config.json` without vocabulary, length and tokens."""
    theirs = {name: getattr(config, ours) for ours, name in (architecture.fields | architecture.dropouts).items()}
    if "activation" in architecture.fields:
        theirs[architecture.fields["activation"]] = ACTIVATION_NAMES[config.activation]
    kind = {"model_type": architecture.model_type, "architectures": [architecture.transformers]}
    return theirs | architecture.write(config) | architecture.standard | kind


def _canonical(source: str, architecture: Architecture, config: TransformerConfig, arrays: Arrays) -> Arrays:
    """Renames arrays as in a model with a head, and drops copies of tied arrays and tables of sinusoids."""
    theirs = architecture.complete(hugging_face.read_config(source))
    body, head, arrays = architecture.body, architecture.head, architecture.cut(arrays, theirs)
    if not any(name.startswith(body) for name in arrays):  # a model without a head
        arrays = {name if name.startswith(head) else f"{body}{name}": value for name, value in arrays.items()}
    for copy, original in (architecture.tied if getattr(config, "tied_output", True) else {}).items():
        value = arrays.pop(copy, None)
        if value is not None and not np.array_equal(value, arrays.setdefault(original, value)):
            raise UsageError(f"{source} has a {copy} of its own, but the model ties it to {original}.")
    for name in architecture.sinusoids:
        table = arrays.pop(name, None)
        # The tolerance allows for tables in half precision.
        if table is not None and not np.allclose(table, sinusoids_in_halves(*table.shape), atol=0.01):
            raise UsageError(f"{source} has a {name} that is no table of sinusoids, but the model has no other.")
    return arrays


def _of_state(path: str, states: Mapping[str, int]) -> int:
    """Finds the width of queries and keys in a checkpoint's layer; 0 if it is a head's, and for other arrays."""
    layer, _, piece = path.removesuffix("/kernel").rpartition("/")
    return states.get(layer, 0) if piece in ("query", "key") else 0


def _shape_there(path: str, array: np.ndarray, here: tuple[int, ...]) -> tuple[int, ...]:
    """Computes our shape of a checkpoint's array; if it can be regrouped, that has the checkpoint's number of heads."""
    there = (*here[:-2], len(array) // here[-1], here[-1]) if len(here) > 1 else here
    return there if there[-2:-1] != (0,) and exchange.regroups(path, there, here) else here


def _to_ours(path: str, array: np.ndarray, there: tuple[int, ...], fresh: jax.Array) -> jax.Array:
    """Converts an array of a checkpoint to our shape: kernels are transposed, and heads get an axis."""
    array = (array.T if path.endswith("/kernel") else array).reshape(there)
    array = array if there == fresh.shape else exchange.regrouped(array, fresh.shape[-2])
    return jax.device_put(array.astype(fresh.dtype), fresh.sharding)


def _to_theirs(path: str, array: np.ndarray) -> np.ndarray:
    """Converts one of our arrays to PyTorch's shape: kernels as (outputs, inputs), with heads concatenated."""
    if path.endswith("/out/kernel"):
        return array.reshape(-1, array.shape[-1]).T
    if path.endswith("/kernel"):
        return array.reshape(len(array), -1).T
    if path == "head_bias":
        return array[None]
    if path.endswith("/table"):
        return array[0]
    return array if path.endswith("/embedding") else array.reshape(-1)
