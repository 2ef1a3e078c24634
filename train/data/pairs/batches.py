"""Batches of pairs of sentences; a batch has sentences of about the same length."""

import dataclasses
import functools
from collections.abc import Mapping

import grain
import numpy as np
from jaxtyping import Int32, Int64

from train.data import pipeline
from train.data.pairs.bucketing import NOTHING, Batches, Buckets
from train.data.store.corpus import TokenisedSplit
from train.data.text.windows import Ids, padded


@dataclasses.dataclass(frozen=True)
class Sentences(pipeline.Examples):
    """The pairs of a split that are short enough.

    Batches hold `source` int32 (B, S), with an end token and padding, `source_length` int32 (B,), `tokens` int32
    (B, T), which the decoder reads, from the start token on, `targets` int32 (B, T), the same one further with the end
    token, `weight` float32 (B, T), 1 on targets that are no padding, and `index` (B,), the place among all pairs of the
    split, -1 for nothing.

    Attributes:
      data: The section of the config, a `TranslationData`.
      text: All pairs of the split.
      special: The `marks` of the tokenisers of `source` and `target`.
    """

    text: TokenisedSplit
    special: Mapping[str, Mapping[str, int]]

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def content(self) -> str:
        """A digest of all pairs of the part that the split is cut from."""
        return self.text.content

    @property
    def too_long(self) -> int:
        """How many pairs are left out."""
        return len(self.text) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the pairs that are short enough, end tokens included."""
        fits = [self.text.lengths(side) + 1 <= most for side, most in self.data.limits.items()]
        return np.flatnonzero(np.all(fits, axis=0))

    @functools.cached_property
    def source_lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of each source, end token included."""
        return self.text.lengths("source")[self.fitting] + 1

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of the longer side of each pair, end token included."""
        return np.maximum(self.source_lengths, self.text.lengths("target")[self.fitting] + 1)

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
        """Yields every pair once, bucket by bucket, and pads the last batches with weight 0.

        Args:
          process_index: This process takes the `process_index`-th block of each global batch.
          process_count: How many processes share it.
          most: How many pairs to take, from the first on; 0 is all.
        """
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
        texts = zip(self.text.row(index) if real else ((), ()), self.special.values(), strict=True)
        source, target = (np.append(ids, special["end"]) for ids, special in texts)
        return {
            "source": self._pad("source", source, bound),
            "source_length": np.int32(len(source)),
            "tokens": self._pad("target", np.append(self.special["target"]["start"], target[:-1]), bound),
            "targets": self._pad("target", target, bound),
            "weight": padded(np.full(len(target), real), min(bound, self.data.limits["target"]), 0).astype(np.float32),
            "index": np.int64(index),
        }

    def _pad(self, side: str, ids: Ids, bound: int) -> Int32[np.ndarray, " width"]:
        return padded(ids, min(bound, self.data.limits[side]), self.special[side]["pad"])


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
