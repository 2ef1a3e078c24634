"""Bucketing: a batch has examples of about the same length, so that little of it is padding.

Which examples are in which batch is a function of (seed, epoch) alone, so a run that is resumed sees the same ones.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError

NOTHING = -1  # the index that pads the last batches of evaluation


@dataclasses.dataclass(frozen=True)
class Batches:
    """The examples of each batch.

    Attributes:
      examples: The indices of examples, `(batches, batch_size)`, padded with NOTHING.
      bucket: The bucket of each batch, whose length it is padded to.
    """

    examples: Int64[np.ndarray, "batches batch_size"]
    bucket: Int64[np.ndarray, " batches"]

    def __len__(self) -> int:
        return len(self.bucket)


@dataclasses.dataclass(frozen=True, eq=False)
class Buckets:
    """Examples grouped by their length.

    Attributes:
      lengths: The length of each example, at most the last of `bounds`.
      bounds: The lengths that batches are padded to, ascending.
      batch_size: The number of examples in a batch.
    """

    lengths: Int64[np.ndarray, " n"]
    bounds: tuple[int, ...]
    batch_size: int

    @functools.cached_property
    def bucket(self) -> Int64[np.ndarray, " n"]:
        """The smallest bucket that each example fits in."""
        return np.searchsorted(self.bounds, self.lengths)

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch of training has; all are whole."""
        return len(self.lengths) // self.batch_size

    def train(self, seed: int, epoch: int) -> Batches:
        """Returns the batches of an epoch: every example once, but for fewer of the longest than a batch holds.

        Examples that do not fill a batch of their bucket join the next longer bucket.
        """
        order, mixed = (np.random.PCG64(key) for key in np.random.SeedSequence([seed, epoch]).spawn(2))
        order = np.argsort(order.random_raw(len(self.lengths)), kind="stable")
        left, groups = order[:0], []
        for number in range(len(self.bounds)):
            members = np.concatenate([left, order[self.bucket[order] == number]])
            whole = len(members) // self.batch_size * self.batch_size
            groups.append(members[:whole].reshape(-1, self.batch_size))
            left = members[whole:]
        batches = _joined(groups)
        shuffled = np.argsort(mixed.random_raw(len(batches)), kind="stable")
        return Batches(batches.examples[shuffled], batches.bucket[shuffled])

    def evaluation(self) -> Batches:
        """Returns batches of every example once, the shortest bucket first, the last batch of each bucket padded."""
        groups = []
        for number in range(len(self.bounds)):
            members = np.flatnonzero(self.bucket == number)
            fill = np.full(-len(members) % self.batch_size, NOTHING)
            groups.append(np.concatenate([members, fill]).reshape(-1, self.batch_size))
        return _joined(groups)


def _joined(groups: list[np.ndarray]) -> Batches:
    bucket = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return Batches(np.concatenate(groups), bucket)


def parse_bounds(text: str, longest: int, field: str = "data.buckets") -> tuple[int, ...]:
    """Reads ascending lengths: '8,16' with a longest of 32 gives (8, 16, 32), and '' gives (32,).

    Raises:
      UsageError: the text is not a list of ascending lengths from 1 to below the longest.
    """
    try:
        bounds = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        bounds = (0,)
    if list(bounds) != sorted(set(bounds)) or any(not 0 < bound < longest for bound in bounds):
        raise UsageError(
            f"{field} must be rising lengths between 1 and {longest - 1}, below the longest sentence, such as "
            f"'{max(1, longest // 4)},{max(2, longest // 2)}', or '' for none, but it is {text!r}."
        )
    return (*bounds, longest)
