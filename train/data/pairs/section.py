"""The `data` section of configs for translation."""

import dataclasses
from typing import ClassVar

from attention.errors import UsageError
from train.data import stated, tokenisers
from train.data.pairs import bitext, sources
from train.data.pairs.batches import Sentences
from train.data.pairs.bitext import Bitext, ParallelText
from train.data.pairs.bucketing import parse_bounds
from train.data.rows.rows import Rows
from train.data.rows.splits import PARTS, Split
from train.data.text.section import CachedTextSection, blank_tokeniser


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
        pairs = ParallelText(Rows("", "", lambda: iter(())), *sides, Split.parse("train"), order="")
        return Bitext(source, target, dict.fromkeys(PARTS, pairs))

    def examples(self, corpus: Bitext) -> dict[str, Sentences]:
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
