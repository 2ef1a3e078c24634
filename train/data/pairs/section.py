"""The `data` section of configs for translation, and batches of pairs."""

import dataclasses
import functools
from typing import Any, ClassVar

import grain
import numpy as np
from jaxtyping import Bool, Int64

from attention.errors import UsageError
from train.data import pipeline, stated, tokenisers
from train.data.pairs import bitext, sources
from train.data.pairs.bitext import Bitext, PairTokens
from train.data.pairs.bucketing import NOTHING, Batches, Buckets, parse_bounds
from train.data.pairs.pair import Pairs
from train.data.rows.splits import PARTS, Split
from train.data.text.section import CachedTextSection, blank_tokeniser
from train.data.text.windows import padded


@dataclasses.dataclass(frozen=True)
class TranslationData(CachedTextSection):
    """Parallel text.

    Attributes:
      source: `dates(...)` (dates written out in several languages, in the package; see
        `train.data.pairs.dates`), `file:PATH` (a table, lines of pairs
        parted by tabs, or two files that are aligned line by line; see `train.data.pairs.sources`),
        `hf:NAME` or `hf:NAME:CONFIG`, or `tfds:NAME`.
      train_split: Such as `train[:70%]`, in pairs. Slices are cut after shuffling, always alike, and never part the
        translations of one source sentence.
      source_column: Of tables: the column of what is translated; `translation.de` is the key `de` in the column
        `translation`. Of lines parted by tabs: its number, from 1. Of aligned files: the end of their names.
      target_column: Likewise of the translations.
      source_tokeniser: `bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH`, `hf:NAME` or
        `marian:NAME/source.spm`; see `train.data.tokenisers`. It needs a start and an end token.
      target_tokeniser: Likewise; '' is the source's, which then learns from both sides.
      source_vocabulary: Tokens that the source's tokeniser must have; 0 leaves it to the tokeniser, but for a dry run
        with one that names no size.
      target_vocabulary: Likewise of the target's; of a shared tokeniser, as many as the source's.
      source_length: Tokens of a source at most, its end token included. Longer pairs are left out, and counted.
      target_length: Tokens of a target at most, its end token included.
      buckets: Lengths below the longest that batches of shorter pairs are padded to, such as `8,16`; '' is none.
      translations: How many validation sentences each evaluation translates, for BLEU; 0 is none. At the end all test
        sentences are.
      by_length: Lengths of sources, such as `8,16`, that part the test sentences into groups, each with a BLEU; '' is
        none.
      beams: Of these translations; 1 is greedy.
      length_penalty: Of beam search: the power of the length that log-probabilities are divided by.
    """

    source_column: str
    target_column: str
    source_tokeniser: str
    target_tokeniser: str
    source_vocabulary: int
    target_vocabulary: int
    source_length: int
    target_length: int
    buckets: str
    translations: int
    by_length: str
    beams: int
    length_penalty: float

    SIZES: ClassVar[tuple[str, ...]] = ("source_length", "target_length", "beams", *CachedTextSection.SIZES)

    def __post_init__(self):
        super().__post_init__()
        sources.check(self.source)
        tokenisers.check(self.source_tokeniser, "data.source_tokeniser")
        if self.target_tokeniser:
            tokenisers.check(self.target_tokeniser, "data.target_tokeniser")
        for field in ("source_vocabulary", "target_vocabulary"):
            stated.check_count(field, getattr(self, field))
        if self.translations < 0:
            raise UsageError(f"data.translations must be at least 0 (0 is none), but it is {self.translations}.")
        self.bounds, self.groups  # noqa: B018

    @property
    def bounds(self) -> tuple[int, ...]:
        """Of the longer side of a pair, for each bucket."""
        return parse_bounds(self.buckets, max(self.source_length, self.target_length))

    @property
    def groups(self) -> tuple[int, ...]:
        """The longest source of each group that has a BLEU; none without `by_length`."""
        return parse_bounds(self.by_length, self.source_length, "data.by_length") if self.by_length else ()

    def load(self) -> Bitext:
        """The pairs; see `train.data.pairs.bitext.load`.

        Raises:
          UsageError: as there, or a tokeniser lacks a special token.
        """
        found = bitext.load(self)
        for side, tokeniser in (("source", found.source_tokeniser), ("target", found.target_tokeniser)):
            missing = [name for name in ("start", "end") if name not in tokeniser.special]
            if missing:
                spec = getattr(self, f"{side}_tokeniser") or self.source_tokeniser
                raise UsageError(
                    f"Translation needs a start and an end token, but {spec!r} has no {missing[0]}; for words, write "
                    "words(marks=True)."
                )
        return found

    def blank(self) -> Bitext:
        """Stands for the pairs in a dry run: one pair of zeros, as long as may be.

        Raises:
          UsageError: a size is not stated.
        """
        source = blank_tokeniser("source_vocabulary", self.source_vocabulary, self.source_tokeniser)
        target = source
        if self.target_tokeniser:
            target = blank_tokeniser("target_vocabulary", self.target_vocabulary, self.target_tokeniser)
        sides = (stated.BlankText(length - 1) for length in (self.source_length, self.target_length))
        pairs = PairTokens(Pairs("", "", lambda: iter(())), *sides, Split.parse("train"), order="")
        return Bitext(source, target, dict.fromkeys(PARTS, pairs))

    def examples(self, corpus: Bitext) -> dict[str, "Sentences"]:
        """What batches are made of, by split."""
        special = (corpus.source_tokeniser.special, corpus.target_tokeniser.special)
        limits = (self.source_length, self.target_length)
        found = {part: Sentences(tokens, *limits, *special) for part, tokens in corpus.splits.items()}
        for part, sentences in found.items():
            least = self.batch_size if part == "train" else 1
            if len(sentences) < least:
                raise UsageError(
                    f"{len(sentences)} pairs of data.{part}_split fit in data.source_length={self.source_length} and "
                    f"data.target_length={self.target_length}, but {least} are needed; raise these lengths, or widen "
                    "the split."
                )
        return found


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The pairs of a split that are short enough.

    Batches hold `source` int32 (B, S), with an end token and padding, `source_length` int32 (B,), `tokens` int32
    (B, T), which the decoder reads, from the start token on, `targets` int32 (B, T), the same one further with the end
    token, `weight` float32 (B, T), 1 on targets that are no padding, and `index` (B,), the place among all pairs of the
    split, -1 for nothing.

    Attributes:
      text: All pairs.
      source_length: Tokens at most, with the end token.
      target_length: Likewise.
      source_special: The tokeniser's ids.
      target_special: Likewise.
    """

    text: PairTokens
    source_length: int
    target_length: int
    source_special: dict[str, int]
    target_special: dict[str, int]

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def eval_length(self) -> int:
        """As many as in an epoch of training."""
        return len(self)

    @property
    def too_long(self) -> int:
        """Pairs that are left out."""
        return len(self.text) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """Which pairs of the split are short enough, end tokens included."""
        fits = self._fits("source", self.source_length) & self._fits("target", self.target_length)
        return np.flatnonzero(fits)

    @functools.cached_property
    def source_lengths(self) -> Int64[np.ndarray, " n"]:
        """Of each source, end token included."""
        return self.text.lengths("source")[self.fitting] + 1

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Of the longer side of each pair, end token included."""
        return np.maximum(self.source_lengths, self.text.lengths("target")[self.fitting] + 1)

    def batch(self, examples: Int64[np.ndarray, " B"], bound: int) -> pipeline.Batch:
        """Some examples, padded to the bound, or to what is the most for a side."""
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
    sentences: Sentences, data: TranslationData, seed: int, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Shuffled batches without end, each of one bucket; see `train.data.pipeline.batched` for the iterator.

    Args:
      sentences: Of the training split.
      data: Batch size, buckets and workers.
      seed: Of the order.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.
    """
    share = pipeline.per_process(data.batch_size, process_count, "data.batch_size")
    buckets = Buckets(sentences.lengths, data.bounds, data.batch_size)
    columns = slice(process_index * share, (process_index + 1) * share)
    numbers = grain.MapDataset.range(buckets.batches_per_epoch).repeat()
    return pipeline.BatchIterator(numbers.map_with_index(_Training(sentences, buckets, seed, columns)), data.workers)


def eval_batches(
    sentences: Sentences, data: TranslationData, process_index: int = 0, process_count: int = 1, most: int = 0
) -> pipeline.BatchIterator:
    """Every pair once, bucket by bucket, last batches filled up with weight 0; all processes get equally many batches.

    Args:
      sentences: Of the split.
      data: Evaluation batch size, buckets and workers.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.
      most: Only the first so many pairs; 0 is all.
    """
    share = pipeline.per_process(data.eval_batch_size, process_count, "data.eval_batch_size")
    lengths = sentences.lengths[: most or None]
    batches = Buckets(lengths, data.bounds, data.eval_batch_size).evaluation()
    columns = slice(process_index * share, (process_index + 1) * share)
    numbers = grain.MapDataset.range(len(batches))
    return pipeline.BatchIterator(numbers.map(_Evaluation(sentences, batches, data.bounds, columns)), data.workers)


@dataclasses.dataclass(eq=False)
class _Training:
    """A process's part of the batch at a place in the endless stream; remembers one epoch, as batches come in order."""

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


@dataclasses.dataclass(frozen=True, eq=False)
class _Evaluation:
    """A process's part of a numbered batch."""

    sentences: Sentences
    batches: Batches
    bounds: tuple[int, ...]
    columns: slice

    def __call__(self, number: int) -> pipeline.Batch:
        examples, bucket = self.batches.examples[number, self.columns], self.batches.bucket[number]
        return self.sentences.batch(examples, self.bounds[bucket])
