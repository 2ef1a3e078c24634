"""Kinds of published models as tables from our names of fields and arrays to theirs."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from models.transformer import TransformerConfig

Table = Mapping[str, str]
Fields = Mapping[str, Any]  # of `config.json`
Arrays = dict[str, np.ndarray]
# From their names to ours.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "swish", "tanh": "tanh"}
# From our names to theirs; those of sizes and dropouts are of most kinds.
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
    """A kind of published model that can be loaded and exported.

    Attributes:
      title: Its name in sentences.
      model_type: The type in `config.json`, which has all fields called theirs.
      transformers: The class of `transformers` that loads an export.
      config: The config class of our model.
      fields: Our fields and theirs, for everything that affects what the model computes.
      dropouts: Our fields and theirs for the rates of dropout.
      fixed: Our fields that have one value in all such models.
      standard: Their optional fields, with the only values that can be loaded.
      same: Their optional fields that must equal another of their fields.
      special: Their fields for special tokens, by the names of `train.data.tokenisers.Tokeniser.special`.
      modules: Our modules and theirs, and those of our parameters that are in no module of theirs; '' for none.
      blocks: Our stacks of blocks, `block` of `block_0` and so on, and theirs.
      block_modules: Modules and parameters within a block.
      body: The prefix of array names in a checkpoint with a head.
      head: The prefix of the head's arrays, which a checkpoint may lack.
      tied: Arrays that may be saved as copies of others, and those others.
      sinusoids: Tables of `sinusoidal_halves` that may be saved but are no parameters.
      unused_positions: Given our fields, returns the rows of the table of positions before that of the first token.
      generation: Given the special tokens and the longest sequence, returns `generation_config.json`; or None.
      vocabulary: Their field for the number of tokens or classes.
      length: Their field for the number of positions.
      complete: Given their fields, returns them with what files say in other words or leave out.
      finish: Undoes `complete`, given also the shapes of our parameters by path.
      read: Given their fields, returns those of ours that several of theirs decide.
      write: Given our config, returns those of theirs that `read` reads.
      unpack: Given a checkpoint's arrays and their fields, returns them with kernels as (outputs, inputs), one for each
        of our parameters but for what `joined` says.
      pack: Undoes `unpack`.
      joined: What arrays are called that hold several of ours, of one size, one below the other; and what ours are.
      absent: Parameters of our blocks that such models lack, and the value that all their numbers must have.
      new_head: Whether the head starts fresh where there are other classes.
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
    head: str
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
        """Names one of our parameters as the checkpoint does; '' if such models do not have it."""
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
        """Cuts a checkpoint's arrays into one for each of our parameters, given its fields."""
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
