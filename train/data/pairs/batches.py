"""Batches of pairs of sentences; a batch has sentences of about the same length, so that little of it is padding.

Which pairs are in which batch is a function of (seed, epoch) alone, so a run that is resumed sees the same ones.
"""

import dataclasses
import functools
from collections.abc import Mapping

import grain
import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError
from train.data import pipeline
from train.data.text.windows import Ids, padded

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


@dataclasses.dataclass(frozen=True)
class FittingExamples(pipeline.Examples):
    """The base of examples with a text that a model writes: the rows of a split that are short enough.

    Attributes:
      data: The section of the config, whose `limits` are the most tokens of each text.
      split: The `TokenisedSplit` of all rows.
    """

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def too_long(self) -> int:
        """How many rows are left out."""
        return len(self.split) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the rows that are short enough, end tokens included."""
        fits = [self.split.lengths(side) + 1 <= most for side, most in self.data.limits.items()]
        return np.flatnonzero(np.all(fits, axis=0))


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

    @property
    def example_bytes(self) -> int:
        """The bytes of one of the longest examples."""
        return 4 * (self.data.limits["source"] + 3 * self.data.limits["target"])  # tokens, targets and their weights

    @functools.cached_property
    def source_lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of each source, end token included."""
        return self.split.lengths("source")[self.fitting] + 1

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of the longer side of each pair, end token included."""
        return np.maximum(self.source_lengths, self.split.lengths("target")[self.fitting] + 1)

    def batch(self, examples: Int64[np.ndarray, " B"], bound: int) -> pipeline.Batch:
        """Returns some examples, padded to the bound, or to a side's greatest length where that is less."""
        rows = [self._row(int(example), bound) for example in examples]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def train_batches(self, seed: int, process_index: int = 0, process_count: int = 1) -> pipeline.BatchIterator:
        """Returns endless shuffled batches, each of one bucket; see `train.data.pipeline.Examples`."""
        share = pipeline.per_process(self.data.batch_size, process_count, "data.batch_size")
        buckets = Buckets(self.lengths, self.data.bounds, self.data.batch_size)
        columns = slice(process_index * share, (process_index + 1) * share)
        numbers = grain.MapDataset.range(buckets.batches_per_epoch).repeat()
        return pipeline.BatchIterator(
            numbers.map_with_index(_Training(self, buckets, seed, columns)), self.data.workers
        )

    def eval_batches(self, process_index: int = 0, process_count: int = 1, most: int = 0) -> pipeline.BatchIterator:
        """Yields every pair once, bucket by bucket, the last batches padded; see `train.data.pipeline.Examples`."""
        share = pipeline.per_process(self.data.eval_batch_size, process_count, "data.eval_batch_size")
        batches = Buckets(self.lengths[: most or None], self.data.bounds, self.data.eval_batch_size).evaluation()
        columns = slice(process_index * share, (process_index + 1) * share)
        batch = functools.partial(self.numbered, batches, columns)
        return pipeline.BatchIterator(grain.MapDataset.range(len(batches)).map(batch), self.data.workers)

    def numbered(self, batches: Batches, columns: slice, number: int) -> pipeline.Batch:
        """Returns some columns of a batch by number, which is a process's part of it."""
        return self.batch(batches.examples[number, columns], self.data.bounds[batches.bucket[number]])

    def _row(self, example: int, bound: int) -> pipeline.Example:
        real = example != NOTHING
        index = self.fitting[example] if real else NOTHING
        source, target = self.split.row(index) if real else ((), ())
        special, widths = self.special, {side: min(bound, most) for side, most in self.data.limits.items()}
        source = np.append(source, special["source"]["end"])
        return {
            "source": padded(source, widths["source"], special["source"]["pad"]),
            "source_length": np.int32(len(source)),
            **written(target, special["target"], widths["target"], real),
            "index": np.int64(index),
        }


def written(ids: Ids, special: Mapping[str, int], width: int, real: bool = True) -> dict[str, np.ndarray]:
    """Returns what a decoder reads of a target, what it is to write, and their weights, all padded to a width.

    Args:
      ids: The target's tokens, without start and end.
      special: The `marks` of its tokeniser.
      width: T.
      real: Whether the target counts.
    """
    target = np.append(ids, special["end"])
    return {
        "tokens": padded(np.append(special["start"], target[:-1]), width, special["pad"]),
        "targets": padded(target, width, special["pad"]),
        "weight": padded(np.full(len(target), real), width, 0).astype(np.float32),
    }


@dataclasses.dataclass(eq=False)
class _Training:
    """Returns a process's part of the batch at a position in the endless stream; caches the batches of one epoch."""

    sentences: Sentences
    buckets: Buckets
    seed: int
    columns: slice
    _epoch: int = -1
    _batches: Batches | None = None

    def __call__(self, position: int, number: int) -> pipeline.Batch:
        epoch = position // self.buckets.batches_per_epoch
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self.buckets.train(self.seed, epoch)
        return self.sentences.numbered(self._batches, self.columns, number)
