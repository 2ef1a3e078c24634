"""Published architectures as tables from our names of fields and arrays to theirs."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.transformer import TransformerConfig

Table = Mapping[str, str]
Fields = Mapping[str, Any]  # those of `config.json`
Arrays = dict[str, np.ndarray]
# From their names to ours.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "swish", "tanh": "tanh"}
# From our names to theirs; most architectures have these sizes and dropouts.
ACTIVATION_NAMES = {ours: theirs for theirs, ours in ACTIVATIONS.items()}
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "table": "weight", "bias": "bias"}
SIZES = {
    "depth": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
}
DROPOUTS = {
    "embedding_dropout": "hidden_dropout_prob",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
SIDES = ("query", "key", "value")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A published architecture that can be loaded and exported. "Their" fields are those of `config.json`.

    Attributes:
      title: Its name in sentences.
      model_type: Its type in `config.json`.
      transformers: The class of `transformers` that loads an export.
      config: The config class of our model.
      fields: Our fields and theirs, for everything that affects what the model computes.
      dropouts: Our fields and theirs for the rates of dropout.
      fixed: Our fields that have one value in all such models.
      standard: Their optional fields, with the only values that can be loaded.
      same: Their optional fields that must equal another of their fields.
      special: Their fields for special tokens, by the names of `train.data.tokenisers.Tokeniser.special`.
      modules: Our modules and theirs, and our parameters that are in no module of theirs; '' where they have none.
      blocks: Our stacks of blocks, such as `block` for `block_0`, and theirs.
      block_modules: Modules and parameters within a block.
      body: The prefix of array names in a checkpoint with a head.
      head: The prefix or prefixes of the head's arrays, which a checkpoint may lack.
      tied: Arrays that may be saved as copies of others, and those others.
      sinusoids: Tables of `sinusoidal_halves` that may be saved but are no parameters.
      unused_positions: Given our fields, counts the rows of the position table before the first token's.
      generation: Given the special tokens and the longest sequence, returns `generation_config.json`; or None.
      vocabulary: Their field for the number of tokens or classes.
      length: Their field for the number of positions.
      complete: Given their fields, adds those that files omit or express differently.
      finish: Undoes `complete`, given also the shapes of our parameters by path.
      read: Given their fields, returns ours that depend on several of theirs.
      write: Given our config, returns the fields that `read` reads.
      unpack: Given a checkpoint's arrays and their fields, returns kernels as (outputs, inputs), with one array for
        each of our parameters, unless `joined` says otherwise.
      pack: Undoes `unpack`.
      joined: Parts of the names of arrays that stack several of ours, equal in size; and the parts of our names.
      absent: Parameters of our blocks that such models lack, and the value that all their numbers must have.
      new_head: Whether the head starts fresh if the number of classes differs.
    """

    title: str
    model_type: str
    transformers: str
    config: type[TransformerConfig]
    fields: Table
    fixed: Mapping[str, Any]
    modules: Table
    blocks: Table
    block_modules: Table
    body: str
    head: str | tuple[str, ...]
    dropouts: Table = dataclasses.field(default_factory=dict)
    standard: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tied: Table = dataclasses.field(default_factory=dict)
    same: Table = dataclasses.field(default_factory=dict)
    special: Table = dataclasses.field(default_factory=dict)
    sinusoids: tuple[str, ...] = ()
    unused_positions: Callable[[Fields], int] = lambda fields: 0
    generation: Callable[[Mapping[str, int], int], dict[str, Any]] | None = None
    vocabulary: str = "vocab_size"
    length: str = "max_position_embeddings"
    complete: Callable[[Fields], Fields] = lambda theirs: theirs
    finish: Callable[[Fields, Mapping[str, tuple[int, ...]]], Fields] = lambda theirs, shapes: theirs
    read: Callable[[Fields], dict[str, Any]] = lambda theirs: {}
    write: Callable[[Any], dict[str, Any]] = lambda config: {}
    unpack: Callable[[Arrays, Fields], Arrays] = lambda arrays, theirs: arrays
    pack: Callable[[Arrays, Fields], Arrays] = lambda arrays, theirs: arrays
    joined: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    absent: Mapping[str, float] = dataclasses.field(default_factory=dict)
    new_head: bool = False

    def array(self, path: str) -> str:
        """Finds the checkpoint's name of one of our parameters; '' if such models do not have it."""
        modules, prefix = self.modules, ""
        block = re.fullmatch(r"(\w+?)_(\d+)/(.+)", path)
        if block and block[1] in self.blocks:
            modules, prefix, path = self.block_modules, f"{self.blocks[block[1]]}.{block[2]}.", block[3]
            if path in self.absent:
                return ""
        module, _, leaf = path.rpartition("/")
        if path in modules:
            return prefix + modules[path]
        return f"{prefix}{modules[module]}.{LEAVES[leaf]}" if module in modules else ""

    def cut(self, arrays: Arrays, theirs: Fields) -> Arrays:
        """Cuts a checkpoint's arrays, given its fields, into one for each of our parameters."""
        apart = dict(self.unpack(arrays, theirs))
        for whole, parts in self.joined.items():
            for name in [name for name in apart if whole in name]:
                names = [name.replace(whole, part) for part in parts]
                apart |= zip(names, np.split(apart.pop(name), len(parts)), strict=True)
        return apart

    def join(self, arrays: Arrays, theirs: Fields) -> Arrays:
        """Undoes `cut`."""
        together = dict(arrays)
        for whole, parts in self.joined.items():
            for name in [name for name in together if parts[0] in name]:
                rows = [together.pop(name.replace(parts[0], part)) for part in parts]
                together[name.replace(parts[0], whole)] = np.concatenate(rows)
        return self.pack(together, theirs)


def swapped(array: np.ndarray, *sizes: int) -> np.ndarray:
    """Swaps the first two axes of an array's rows, seen as axes of these sizes."""
    return array.reshape(*sizes, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)
