"""The base of trials: small generated tasks that show what a mechanism can do."""

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
LARGEST = 2**14  # the largest size, since some trials compare all pairs


@dataclasses.dataclass(frozen=True)
class Trial(Checked):
    """A task that makes an example of a given size from draws, alike in numpy and in jax.numpy.

    A subclass says what its size counts, and defines `vocabulary`, `answers` and `example`.
    """

    size: Count = 16  # of the largest training examples
    least: Annotated[int, Sentinel(0, "`size`")] = 0  # size of the smallest training examples
    tested: tuple[int, ...] = ()  # further sizes to test the trained model on

    answers: ClassVar[str]  # the field with the number of possible answers
    positions: ClassVar[int] = 1  # positions for each thing that the size counts
    channels: ClassVar[int] = 1  # tokens per position; their embeddings are added
    pooled: ClassVar[bool] = False  # whether the last position gives all answers
    smallest: ClassVar[int] = 1  # the smallest size with an answer

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
        """The number of different tokens."""
        raise NotImplementedError

    @property
    def chance(self) -> float:
        """The accuracy of guessing among the possible answers."""
        return 1 / getattr(self, self.answers)

    def length(self, size: int) -> int:
        """Counts the positions of an example of a size."""
        return self.positions * size

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        """Makes an example: `tokens (T, C)`, `targets (T,)`, and their `weight (T,)`, 1 for answers, else 0.

        A device may trace the size; T is the length for the largest size, `most`.
        """
        raise NotImplementedError

    def drawn_size(self, draw: Draws) -> Word:
        """Draws the size of a training example."""
        least = self.least or self.size
        return least + draw.integer(self.size - least + 1)


def example(tokens: Array, targets: Array, answers: Array) -> Example:
    """Builds an example from tokens, `(T,)` or `(T, C)`, targets, and where answers are, bool `(T,)`."""
    xp = draws.namespace(targets)
    tokens = tokens if tokens.ndim == 2 else tokens[:, None]
    kept = xp.where(answers, targets, 0)
    return {"tokens": tokens.astype(np.int32), "targets": kept.astype(np.int32), "weight": answers.astype(np.float32)}


def ranked(keys: Array) -> Array:
    """Gives the indices that sort keys; equal keys keep their order."""
    return draws.namespace(keys).argsort(keys, stable=True)


def permuted(draw: Draws, count: int, first: Word | None = None) -> Array:
    """Permutes 0 … count - 1; with `first`, the numbers below it come first."""
    bits = draw.bits(count) >> 1
    if first is not None:
        xp = draws.namespace(bits)
        bits = bits | (xp.arange(count) >= first).astype(np.uint32) << 31
    return ranked(bits)
