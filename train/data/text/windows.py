"""Windows of tokens: where they start and end, and how they are cut from a text."""

import dataclasses

import numpy as np
from jaxtyping import Int32, Int64, Integer

from train.data import draws
from train.data.draws import Draws, Word

Ids = Integer[np.ndarray, " tokens"]
Starts = Int64[np.ndarray, " windows"]


@dataclasses.dataclass(frozen=True)
class Cuts:
    """Adjacent windows of `width` tokens, which are cut at different places every epoch.

    So an epoch shows every token once, but for less than two windows at the ends, and windows differ between epochs.

    Attributes:
      tokens: The number of tokens of the text.
      width: The tokens of a window.
      ahead: How many tokens after a window are needed too, such as 1 for the last target.
    """

    tokens: int
    width: int
    ahead: int = 0

    def __len__(self) -> int:
        """Counts the windows of an epoch, at least 1."""
        return max(1, (self.tokens - self.ahead - self.width + 1) // self.width)

    def starts(self, seed: int, epoch: int) -> Starts:
        """Finds the first token of each window, in the order of the text."""
        room = self.tokens - self.ahead - len(self) * self.width
        return np.arange(len(self)) * self.width + Draws(draws.CUTS, seed, epoch).integer(room + 1)


@dataclasses.dataclass(frozen=True)
class Strides:
    """Windows of `width` tokens, each `stride` after the one before, over all of a text; the last may be cut short.

    Attributes:
      tokens: The number of tokens of the text.
      width: The tokens of a window.
      stride: The distance between windows, at most `width`, with which they do not overlap.
    """

    tokens: int
    width: int
    stride: int

    def __len__(self) -> int:
        """Counts the windows, at least 1."""
        return max(0, -(-(self.tokens - self.width) // self.stride)) + 1

    def starts(self, numbers: Starts) -> Starts:
        """Finds the first token of some windows."""
        return numbers * self.stride

    def lengths(self, numbers: Starts) -> Starts:
        """Counts the tokens of some windows."""
        return np.minimum(self.tokens - self.starts(numbers), self.width)

    def repeated(self, numbers: Starts) -> Starts:
        """Counts the tokens of some windows that an earlier window shows, at their beginning."""
        return np.where(numbers > 0, self.width - self.stride, 0)


def cut(ids: Ids, start: int, width: int) -> Int32[np.ndarray, " width"]:
    """Cuts `width` tokens out of a text; after its end come zeros."""
    out = np.zeros(width, np.int32)
    there = ids[start : start + width]
    out[: len(there)] = there
    return out


def padded(ids: Int32[np.ndarray, " width"], length: Word, pad: int) -> Int32[np.ndarray, " width"]:
    """Replaces what comes after the first `length` ids by `pad`, on the host or on a device."""
    return draws.namespace(ids).where(np.arange(len(ids)) < length, ids, np.int32(pad))
