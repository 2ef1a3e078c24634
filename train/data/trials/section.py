"""Trials' `data` section, and their examples."""

import dataclasses
import functools
from typing import Annotated

import numpy as np
from jaxtyping import Integer

from attention.types import Count, Reader
from models.fields import field
from train.data import draws, trials
from train.data.draws import Draws
from train.data.pipeline import Example, Examples, Raw, Recipe, Recipes
from train.data.section import Batches
from train.data.splits import PARTS
from train.data.trials.trial import Trial

DRAWN = 0  # instead of a size: drawn, as in training


@dataclasses.dataclass(frozen=True)
class TrialData(Batches):
    """A trial, and the number of its examples."""

    source: Annotated[str, Reader(trials.parse)] = field(
        "stacked_recall", "A trial with options, such as `recall(size=8, tested=(16, 32))`; see `docs/trials.md`."
    )
    train_examples: Count = field(100_000, "Number of training examples, which are the same for all seeds.")
    eval_examples: Count = field(1000, "Number of validation examples, and of test examples for each size.")
    batch_size: int = 64
    eval_batch_size: int = 250

    def load(self) -> dict[str, "TrialExamples"]:
        """Makes the examples of all parts, by the names of `train.data.splits.PARTS`."""
        return {part: TrialExamples(self, part) for part in PARTS}

    @functools.cached_property
    def trial(self) -> Trial:
        """The trial that `source` names."""
        return trials.parse(self.source)


@dataclasses.dataclass(frozen=True)
class TrialExamples(Examples):
    """The examples of a part, each a function of the part and its number alone, not of the seed.

    Training and validation draw the sizes. The test adds as many examples again for each size in `tested`.
    """

    data: TrialData
    split: str

    def __len__(self) -> int:
        return self.data.train_examples if self.split == "train" else self.data.eval_examples * len(self._sizes)

    @property
    def content(self) -> str:
        """The trial, and the version of its draws."""
        return f"{self.data.source}, version 1"

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        groups = np.zeros_like(numbers) if self.split == "train" else numbers // self.data.eval_examples
        return {"index": numbers, "size": np.array(self._sizes)[groups]}

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        del raw, draw
        trial, index, size = self.data.trial, recipe["index"], recipe["size"]
        draw = Draws(draws.TRIAL, PARTS.index(self.split), index)
        drawn, xp = trial.drawn_size(draw), draws.namespace(index)
        made = trial.example(draw, xp.where(size == DRAWN, drawn, size), max(trial.size, *self._sizes))
        return made | {"size": xp.asarray(size, np.int32), "index": index}

    @property
    def _sizes(self) -> tuple[int, ...]:
        return (DRAWN, *self.data.trial.tested) if self.split == "test" else (DRAWN,)
