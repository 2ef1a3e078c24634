"""Windows of tokens, their starts and ends, and padding."""

import dataclasses
import functools

import numpy as np
from jaxtyping import Float32, Int32, Integer

Ids = Integer[np.ndarray, " tokens"]


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
        """Returns the number of windows in an epoch, at least 1."""
        return max(1, (self.tokens - self.ahead - self.width + 1) // self.width)

    def start(self, index: int, epoch: int, seed: int) -> int:
        """Returns the first token of a window."""
        room = self.tokens - self.ahead - len(self) * self.width
        return index * self.width + _offset(room + 1, epoch, seed)


@functools.lru_cache(maxsize=16)
def _offset(bound: int, epoch: int, seed: int) -> int:
    return int(np.random.default_rng([seed, epoch]).integers(bound))


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
        """Returns the number of windows, at least 1."""
        return max(0, -(-(self.tokens - self.width) // self.stride)) + 1

    def span(self, index: int) -> tuple[int, int]:
        """Returns the first token of a window and the one after its last."""
        start = index * self.stride
        return start, min(start + self.width, self.tokens)

    def weight(self, index: int) -> Float32[np.ndarray, " width"]:
        """Returns 1 on tokens that no earlier window shows, else 0, so that all windows sum to `tokens`."""
        start, stop = self.span(index)
        weight = np.zeros(self.width, np.float32)
        weight[self.width - self.stride if index else 0 : stop - start] = 1
        return weight

    def whole_weight(self, index: int) -> Float32[np.ndarray, " width"]:
        """Returns 1 on all tokens of a whole window, repeated ones included, and 0 on a window that is cut short."""
        start, stop = self.span(index)
        return np.full(self.width, float(stop - start == self.width), np.float32)


def padded(ids: Ids, width: int, pad: int) -> Int32[np.ndarray, " width"]:
    """Pads ids at the end with `pad`."""
    out = np.full(width, pad, np.int32)
    out[: len(ids)] = ids
    return out


def truncated(ids: Ids, width: int, keep: str) -> Ids:
    """Returns at most `width` ids, the 'first' or the 'last'."""
    return ids[:width] if keep == "first" else ids[max(0, len(ids) - width) :]
