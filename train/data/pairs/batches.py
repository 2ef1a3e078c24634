"""Batches of pairs of sentences; a batch has sentences of about the same length, so that little of it is padding.

Which pairs are in which batch is a function of (seed, epoch) alone, so a run that is resumed sees the same ones.
"""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import draws
from train.data.pipeline import NOTHING, Example, Raw, Row, Rows
from train.data.text.examples import WithTexts
from train.data.text.windows import Ids, padded


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
        """Makes the batches of an epoch: every example once, but for fewer of the longest than a batch holds.

        Examples that do not fill a batch of their bucket join the next longer bucket.
        """
        order = draws.permutation(len(self.lengths), draws.ORDER, seed, epoch)
        left, groups = order[:0], []
        for number in range(len(self.bounds)):
            members = np.concatenate([left, order[self.bucket[order] == number]])
            whole = len(members) // self.batch_size * self.batch_size
            groups.append(members[:whole].reshape(-1, self.batch_size))
            left = members[whole:]
        batches = _joined(groups)
        shuffled = draws.permutation(len(batches), draws.BATCHES, seed, epoch)
        return Batches(batches.examples[shuffled], batches.bucket[shuffled])

    def evaluation(self) -> Batches:
        """Makes batches of every example once, the shortest bucket first, the last batch of each bucket padded."""
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


@dataclasses.dataclass(frozen=True)
class FittingExamples(WithTexts):
    """The base of examples with a text that a model writes: the rows of a split that are short enough.

    Attributes:
      data: The section of the config, whose `limits` are the most tokens of each text.
      split: The `TokenisedSplit` of all rows.
    """

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def texts(self) -> dict[str, Ids]:
        """All texts of the part, end to end."""
        return {name: column.ids for name, column in self.split.columns.items()}

    @property
    def widths(self) -> dict[str, int]:
        """The most tokens of each text, its end token included."""
        return self.data.limits

    @property
    def too_long(self) -> int:
        """How many rows are left out."""
        return len(self.split) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the rows that are short enough, end tokens included."""
        fits = [self.split.lengths(side) + 1 <= most for side, most in self.data.limits.items()]
        return np.flatnonzero(np.all(fits, axis=0))

    def rows(self, numbers: Integer[np.ndarray, " n"]) -> Rows:
        """Describes some examples; NOTHING is a pair of empty texts."""
        index = np.where(numbers == NOTHING, NOTHING, self.fitting[numbers])
        places = [self.places(name, index) for name in self.split.columns]
        real = index != NOTHING
        return {"index": index} | {name: of * real for place in places for name, of in place.items()}


@dataclasses.dataclass(frozen=True)
class Sentences(FittingExamples):
    """The pairs of a split that are short enough.

    Batches hold `source` int32 (B, S), with an end token and padding, `source_length` int32 (B,), `tokens` int32
    (B, T), which the decoder reads, from the start token on, `targets` int32 (B, T), the same one further with the end
    token, `weight` float32 (B, T), 1 on targets that are no padding, and `index` (B,), the place among all pairs of the
    split, -1 for nothing.

    Attributes:
      data: The section of the config, a `TranslationData`.
      split: The `TokenisedSplit` of all pairs.
      special: The `marks` of the tokenisers of `source` and `target`.
    """

    special: Mapping[str, Mapping[str, int]]

    @functools.cached_property
    def source_lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of each source, end token included."""
        return self.split.lengths("source")[self.fitting] + 1

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of the longer side of each pair, end token included."""
        return np.maximum(self.source_lengths, self.split.lengths("target")[self.fitting] + 1)

    @property
    def epoch_length(self) -> int:
        """How many pairs an epoch of training has, in whole batches."""
        return len(self) // self.data.batch_size * self.data.batch_size

    def epoch(self, seed: int, number: int) -> Rows:
        """Orders an epoch in batches of one bucket each; see `train.data.pipeline.Examples`."""
        return self._bucketed(Buckets(self.lengths, self.data.bounds, self.data.batch_size).train(seed, number))

    def evaluation(self, count: int) -> Rows:
        """Describes pairs bucket by bucket, the last batches of each filled up."""
        return self._bucketed(Buckets(self.lengths[:count], self.data.bounds, self.data.eval_batch_size).evaluation())

    def evaluated(self, raw: Raw, row: Row) -> Example:
        """Pads a pair to its bucket, or to a side's greatest length where that is less."""
        bound = row["bound"] if "bound" in row else self.data.bounds[-1]
        source, target, real = raw["source"][:bound], raw["target"][:bound], row["index"] != NOTHING
        return {
            "source": with_end(source, row["source_length"], self.special["source"]),
            "source_length": draws.namespace(row["index"]).int32(row["source_length"] + 1),
            **written(target, row["target_length"], self.special["target"], real),
            "index": row["index"],
        }

    def why_host(self, training: bool) -> str:
        """Names buckets, whose batches have several shapes; see `train.data.pipeline.Examples`."""
        several = len(self.data.bounds) > 1
        return "batches of data.buckets differ in length" if several else super().why_host(training)

    def blank(self, example: Example, row: Row) -> Example:
        """Leaves a pair of empty texts as it is: a source of no token would have nothing to attend to."""
        del row
        return example

    def _bucketed(self, batches: Batches) -> Rows:
        rows = self.rows(batches.examples.reshape(-1))
        if len(self.data.bounds) == 1:
            return rows
        return rows | {"bound": np.repeat(np.array(self.data.bounds)[batches.bucket], batches.examples.shape[1])}


def with_end(ids: Int32[np.ndarray, " width"], length: int, special: Mapping[str, int]) -> Int32[np.ndarray, " width"]:
    """Puts the end token after the first `length` ids, and padding after it."""
    ended = draws.namespace(ids).where(np.arange(len(ids)) == length, np.int32(special["end"]), ids)
    return padded(ended, length + 1, special["pad"])


def written(
    ids: Int32[np.ndarray, " width"], length: int, special: Mapping[str, int], real: bool = True
) -> dict[str, np.ndarray]:
    """Makes what a decoder reads of a target, what it is to write, and their weights.

    Args:
      ids: The target's tokens and whatever follows them.
      length: How many tokens the target has, fewer than `ids`.
      special: The `marks` of its tokeniser.
      real: Whether the target counts.
    """
    read = draws.namespace(ids).concatenate([np.full(1, special["start"], np.int32), ids[:-1]])
    return {
        "tokens": padded(read, length + 1, special["pad"]),
        "targets": with_end(ids, length, special),
        "weight": ((np.arange(len(ids)) <= length) & real).astype(np.float32),
    }
