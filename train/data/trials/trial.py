"""The base of trials: small tasks, generated from draws, that separate mechanisms by what they can do."""

import dataclasses
from typing import Annotated, ClassVar

import jax
import numpy as np

from attention.errors import UsageError
from attention.types import Checked, Count, Sentinel
from train.data import draws
from train.data.draws import Draws, Word
from train.data.pipeline import Example

Array = np.ndarray | jax.Array
LARGEST = 2**14  # the greatest size: some trials compare all pairs


@dataclasses.dataclass(frozen=True)
class Trial(Checked):
    """A task, which makes an example of a size from draws, alike in numpy and in jax.numpy.

    A subclass says what its size counts, and defines `vocabulary`, `answers` and `example`.
    """

    size: Count = 16  # of training examples, or the greatest
    least: Annotated[int, Sentinel(0, "`size`")] = 0  # theirs
    tested: tuple[int, ...] = ()  # further sizes, on which the trained model is tested

    answers: ClassVar[str]  # the field that says how many there are
    positions: ClassVar[int] = 1  # of each that the size counts
    channels: ClassVar[int] = 1  # tokens at a position, whose embeddings are added
    pooled: ClassVar[bool] = False  # whether all answers are read from the last position
    smallest: ClassVar[int] = 1  # the least size that has an answer

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.least <= self.size:
            raise UsageError(f"least must be 0 or a size up to size={self.size}, but it is {self.least}.")
        if (least := min(self.least or self.size, *self.tested, self.size)) < self.smallest:
            raise UsageError(f"A size must be at least {self.smallest}, to have an answer, but one is {least}.")
        if (most := max(self.size, *self.tested, 0)) > LARGEST:
            raise UsageError(f"A size must be at most {LARGEST}, but one is {most}.")
        if len({self.size, *self.tested}) <= len(self.tested):
            raise UsageError(f"tested must be other sizes than size={self.size}, each once, but it is {self.tested}.")

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """The accuracy of guesses among the possible answers."""
        return 1 / getattr(self, self.answers)

    def length(self, size: int) -> int:
        """How many positions an example of a size has."""
        return self.positions * size

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        """Makes an example: `tokens (T, C)`, the `targets (T,)`, and their `weight (T,)`, 1 for answers, else 0.

        A device may trace the size; T is the length of the greatest one, `most`.
        """
        raise NotImplementedError

    def drawn_size(self, draw: Draws) -> Word:
        """Draws the size of a training example."""
        least = self.least or self.size
        return least + draw.integer(self.size - least + 1)


def example(tokens: Array, targets: Array, answers: Array) -> Example:
    """Puts an example together: tokens `(T,)` or `(T, C)`, and where there are answers, bool `(T,)`."""
    xp = draws.namespace(targets)
    tokens = tokens if tokens.ndim == 2 else tokens[:, None]
    kept = xp.where(answers, targets, 0)
    return {"tokens": tokens.astype(np.int32), "targets": kept.astype(np.int32), "weight": answers.astype(np.float32)}


def ranked(keys: Array) -> Array:
    """Gives the places that sort keys; equal keys keep their order."""
    return draws.namespace(keys).argsort(keys, stable=True)


def permuted(draw: Draws, count: int, first: Word | None = None) -> Array:
    """Permutes 0 … count - 1; with `first`, the numbers below it among themselves, and the others after them."""
    bits = draw.bits(count) >> 1
    if first is not None:
        xp = draws.namespace(bits)
        bits = bits | (xp.arange(count) >= first).astype(np.uint32) << 31
    return ranked(bits)
