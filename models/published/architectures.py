"""What a kind of published model is, as tables: its fields and arrays under our names and under theirs."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from models.transformer import TransformerConfig

Table = Mapping[str, str]
LEAVES = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A kind of published model that can be loaded and exported.

    Attributes:
      title: Its name in sentences.
      model_type: In `config.json`, as is what else is theirs.
      transformers: The class that loads an export.
      config: Of our model.
      fields: Our fields and theirs, for all that decides what it computes.
      dropouts: Likewise for the rates of dropout.
      fixed: Our fields that have one value in all such models.
      standard: Of their optional fields, the only values that can be loaded.
      same: Their fields that must be as another of theirs, where they are there.
      special: Their fields for special tokens, by the names of `train.data.tokenisers.Tokeniser.special`.
      modules: Our modules and theirs.
      blocks: Our stacks of blocks, `block` of `block_0` and so on, and theirs.
      block_modules: Modules within a block.
      rows: Vectors of ours that are matrices of one row there.
      body: What arrays have before their name when the model was saved with its head.
      head: How the names of the head's arrays begin, without which a checkpoint is whole.
      tied: Copies of other arrays, where they are saved at all.
      sinusoids: Tables of `sinusoidal_halves`, which are no parameters, where they are saved at all.
      unused_positions: Rows of a table of positions before the first token's, from our fields.
      generation: From the special tokens and the longest sequence, what `generation_config.json` says; or none.
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
    unused_positions: Callable[[Mapping[str, Any]], int] = lambda fields: 0
    generation: Callable[[Mapping[str, int], int], dict[str, Any]] | None = None

    def array(self, path: str) -> str:
        """The checkpoint's name of one of our parameters; '' where such models have no such thing."""
        if path in self.rows:
            return self.rows[path]
        module, _, leaf = path.rpartition("/")
        block = re.fullmatch(r"(\w+?)_(\d+)/(.+)", module)
        if block and block[1] in self.blocks and block[3] in self.block_modules:
            return f"{self.blocks[block[1]]}.{block[2]}.{self.block_modules[block[3]]}.{LEAVES[leaf]}"
        return f"{self.modules[module]}.{LEAVES[leaf]}" if module in self.modules else ""
