"""Kinds of published models as tables from our names of fields and arrays to theirs."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from models.transformer import TransformerConfig

Table = Mapping[str, str]
Fields = Mapping[str, Any]  # of `config.json`
Arrays = dict[str, Any]
# From their names to ours.
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "swish", "tanh": "tanh"}
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "table": "weight", "bias": "bias"}


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
      modules: Our modules and theirs.
      blocks: Our stacks of blocks, `block` of `block_0` and so on, and theirs.
      block_modules: Modules within a block.
      rows: Our vectors that are matrices of one row in a checkpoint.
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
      write: Given our config, returns those of theirs that `read` reads; or None if there are none.
      unpack: Given a checkpoint's arrays and their fields, returns one for each of our parameters, kernels as (outputs,
        inputs).
      pack: Undoes `unpack`.
      absent: Parameters of our blocks that such models lack, and the value that all their numbers must have.
      arrays: Our parameters and theirs, where these are no modules.
      new_head: Whether the head starts fresh where there are other classes.
    """

    title: str
    model_type: str
    transformers: str
    config: type[TransformerConfig]
    fields: Table
    dropouts: Table
    fixed: Mapping[str, Any]
    standard: Mapping[str, Any]
    modules: Table
    blocks: Table
    block_modules: Table
    body: str
    head: str
    tied: Table
    same: Table = dataclasses.field(default_factory=dict)
    special: Table = dataclasses.field(default_factory=dict)
    rows: Table = dataclasses.field(default_factory=dict)
    sinusoids: tuple[str, ...] = ()
    unused_positions: Callable[[Fields], int] = lambda fields: 0
    generation: Callable[[Mapping[str, int], int], dict[str, Any]] | None = None
    vocabulary: str = "vocab_size"
    length: str = "max_position_embeddings"
    complete: Callable[[Fields], Fields] = lambda theirs: theirs
    finish: Callable[[Fields, Mapping[str, tuple[int, ...]]], Fields] = lambda theirs, shapes: theirs
    read: Callable[[Fields], dict[str, Any]] = lambda theirs: {}
    write: Callable[[Any], dict[str, Any]] | None = None
    unpack: Callable[[Arrays, Fields], Arrays] = lambda arrays, theirs: arrays
    pack: Callable[[Arrays, Fields], Arrays] = lambda arrays, theirs: arrays
    absent: Mapping[str, float] = dataclasses.field(default_factory=dict)
    arrays: Table = dataclasses.field(default_factory=dict)
    new_head: bool = False

    def array(self, path: str) -> str:
        """Returns the checkpoint's name of one of our parameters, or '' if such models do not have it."""
        if path in self.rows or path in self.arrays:
            return self.rows.get(path) or self.arrays[path]
        module, _, leaf = path.rpartition("/")
        block = re.fullmatch(r"(\w+?)_(\d+)/(.+)", module)
        if block and f"{block[3]}/{leaf}" in self.absent:
            return ""
        if block and block[1] in self.blocks and f"{block[3]}/{leaf}" in self.block_modules:
            return f"{self.blocks[block[1]]}.{block[2]}.{self.block_modules[f'{block[3]}/{leaf}']}"
        if block and block[1] in self.blocks and block[3] in self.block_modules:
            return f"{self.blocks[block[1]]}.{block[2]}.{self.block_modules[block[3]]}.{LEAVES[leaf]}"
        return f"{self.modules[module]}.{LEAVES[leaf]}" if module in self.modules else ""
