"""Batches of pairs of sentences; a batch has sentences of about the same length."""

import dataclasses
import functools
from typing import Any, Protocol

import grain
import numpy as np
from jaxtyping import Bool, Int64

from train.data import pipeline
from train.data.pairs.bitext import ParallelText
from train.data.pairs.bucketing import NOTHING, Batches, Buckets
from train.data.text.windows import padded


class BucketSizes(pipeline.BatchSizes, Protocol):
    """The fields of the `data` section for batches of pairs.

    Attributes:
      bounds: The lengths that batches are padded to, ascending.
    """

    bounds: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The pairs of a split that are short enough.

    Batches hold `source` int32 (B, S), with an end token and padding, `source_length` int32 (B,), `tokens` int32
    (B, T), which the decoder reads, from the start token on, `targets` int32 (B, T), the same one further with the end
    token, `weight` float32 (B, T), 1 on targets that are no padding, and `index` (B,), the place among all pairs of the
    split, -1 for nothing.

    Attributes:
      text: All pairs of the split.
      source_length: The most tokens of a source, with the end token.
      target_length: The most tokens of a target, with the end token.
      source_special: The special ids of the source's tokeniser.
      target_special: The special ids of the target's tokeniser.
    """

    text: ParallelText
    source_length: int
    target_length: int
    source_special: dict[str, int]
    target_special: dict[str, int]

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def eval_length(self) -> int:
        """How many pairs evaluation has, the same as an epoch of training."""
        return len(self)

    @property
    def too_long(self) -> int:
        """How many pairs are left out."""
        return len(self.text) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the pairs that are short enough, end tokens included."""
        fits = self._fits("source", self.source_length) & self._fits("target", self.target_length)
        return np.flatnonzero(fits)

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
        rows = [
            self._row(int(example), min(bound, self.source_length), min(bound, self.target_length))
            for example in examples
        ]
        return {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def _row(self, example: int, source_width: int, target_width: int) -> dict[str, Any]:
        real = example != NOTHING
        index = self.fitting[example] if real else NOTHING
        source, target = self.text.ids(index) if real else ((), ())
        ends, start = (self.source_special["end"], self.target_special["end"]), self.target_special["start"]
        source, target = np.append(source, ends[0]), np.append(target, ends[1])
        pads = [special.get("pad", special["end"]) for special in (self.source_special, self.target_special)]
        return {
            "source": padded(source, source_width, pads[0]),
            "source_length": np.int32(len(source)),
            "tokens": padded(np.append(start, target[:-1]), target_width, pads[1]),
            "targets": padded(target, target_width, pads[1]),
            "weight": padded(np.full(len(target), real), target_width, 0).astype(np.float32),
            "index": np.int64(index),
        }

    def _fits(self, side: str, most: int) -> Bool[np.ndarray, " n"]:
        return self.text.lengths(side) + 1 <= most


def train_batches(
    sentences: Sentences, data: BucketSizes, seed: int, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Returns endless shuffled batches, each of one bucket; see `train.data.pipeline.batched` for the iterator.

    Args:
      sentences: The sentences of the training split.
      data: Batch size, buckets and workers.
      seed: The seed of the order.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.
    """
    share = pipeline.per_process(data.batch_size, process_count, "data.batch_size")
    buckets = Buckets(sentences.lengths, data.bounds, data.batch_size)
    columns = slice(process_index * share, (process_index + 1) * share)
    numbers = grain.MapDataset.range(buckets.batches_per_epoch).repeat()
    return pipeline.BatchIterator(numbers.map_with_index(_Training(sentences, buckets, seed, columns)), data.workers)


def eval_batches(
    sentences: Sentences, data: BucketSizes, process_index: int = 0, process_count: int = 1, most: int = 0
) -> pipeline.BatchIterator:
    """Yields every pair once, bucket by bucket, and pads the last batches with weight 0.

    Args:
      sentences: The sentences of the split.
      data: Evaluation batch size, buckets and workers.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.
      most: How many pairs to take, from the first on; 0 is all.
    """
    share = pipeline.per_process(data.eval_batch_size, process_count, "data.eval_batch_size")
    lengths = sentences.lengths[: most or None]
    batches = Buckets(lengths, data.bounds, data.eval_batch_size).evaluation()
    columns = slice(process_index * share, (process_index + 1) * share)
    batch = functools.partial(_evaluation, sentences, batches, data.bounds, columns)
    return pipeline.BatchIterator(grain.MapDataset.range(len(batches)).map(batch), data.workers)


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
        bound = self.buckets.bounds[self._batches.bucket[number]]
        return self.sentences.batch(self._batches.examples[number, self.columns], bound)


def _evaluation(
    sentences: Sentences, batches: Batches, bounds: tuple[int, ...], columns: slice, number: int
) -> pipeline.Batch:
    """Returns a process's part of a numbered batch."""
    return sentences.batch(batches.examples[number, columns], bounds[batches.bucket[number]])
