"""The `data` section of configs for translation."""

import dataclasses
from typing import Annotated

from attention.errors import UsageError
from attention.types import Count, Reader, Sentinel, Unit, at_most
from models.fields import field
from train.data import section, sources, tokenisers
from train.data.encodings.corpus import Corpus, load
from train.data.pairs.batches import Sentences, parse_bounds
from train.data.sources.rows import DataColumn
from train.data.text.section import CachedTextSection


@dataclasses.dataclass(frozen=True)
class WrittenTextData(CachedTextSection):
    """The base of the sections of data with a text that a model writes: its length, and how it is searched for."""

    batch_size: int = 64
    eval_batch_size: int = 128
    target_length: Annotated[Count, Unit("tokens")] = field(64, "Of a target at most, its end token included.")
    translations: Annotated[Count, Sentinel(0, "none")] = field(
        0,
        "Validation texts that each evaluation lets the model write, for BLEU. At the end it writes all test texts.",
        may_change=True,
    )
    beams: Annotated[Count, at_most(1000)] = field(1, "Of these searches; 1 is greedy.", may_change=True)
    length_penalty: float = field(
        1.0, "Of beam search: the power of the length that log-probabilities are divided by.", may_change=True
    )

    @property
    def limits(self) -> dict[str, int]:
        """The most tokens of each text of a row, its end token included."""
        return {"target": self.target_length}

    @property
    def lengths(self) -> dict[str, int]:
        """The tokens of a blank row, whose texts have the greatest lengths with their end tokens."""
        return {side: length - 1 for side, length in self.limits.items()}

    def check_marks(self, corpus: Corpus) -> None:
        """Raises UsageError where a tokeniser lacks a start or an end token."""
        for side, tokeniser in corpus.tokenisers.items():
            if missing := [name for name in ("start", "end") if name not in tokeniser.special]:
                spec = getattr(self, f"{side}_tokeniser") or self.source_tokeniser
                raise UsageError(
                    f"A text that is written needs a start and an end token, but {spec!r} has no {missing[0]}; for "
                    "words, write words(marks=True)."
                )


@dataclasses.dataclass(frozen=True)
class TranslationData(WrittenTextData):
    """Parallel text."""

    source: Annotated[str, Reader(sources.checker("pairs"))] = field(
        "dates()",
        "`dates(...)` (dates written out in several languages, in the package; see `train.data.sources.dates`), "
        "`file:PATH` (a table, lines of pairs parted by tabs, or two files that are aligned line by line; see "
        "`train.data.sources.file`), `hf:NAME` or `hf:NAME:CONFIG`, or `tfds:NAME`.",
    )
    train_split: str = field(
        "train",
        "Such as `train[:70%]`, in pairs. Slices are cut after shuffling, always alike, and never part the "
        "translations of one source sentence.",
    )
    source_column: str = field(
        "source",
        "Of tables: the column of what is translated; `translation.de` is the key `de` in the column `translation`. Of "
        "lines parted by tabs: its number, from 1. Of aligned files: the end of their names.",
    )
    target_column: str = field("target", "Likewise of the translations.")
    source_tokeniser: Annotated[str, Reader(tokenisers.check)] = field(
        "bytes",
        "`bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH`, `hf:NAME` or "
        "`marian:NAME/source.spm`; see `train.data.tokenisers`. It needs a start and an end token.",
    )
    target_tokeniser: Annotated[
        str, Sentinel("", "the source's, which then learns from both sides"), Reader(tokenisers.check)
    ] = field("", "Likewise of the target.")
    source_vocabulary: section.Vocabulary = field(
        0, "What the source's tokeniser must have.", size_of=("source_tokeniser",)
    )
    target_vocabulary: section.Vocabulary = field(
        0,
        "What the target's tokeniser must have; a shared one as many as the source's.",
        size_of=("source_tokeniser", "target_tokeniser"),
    )
    source_length: Annotated[Count, Unit("tokens")] = field(
        64, "Of a source at most, its end token included. Longer pairs are left out, and counted."
    )
    buckets: str = field(
        "", "Lengths below the longest that batches of shorter pairs are padded to, such as `8,16`; '' is none."
    )
    by_length: str = field(
        "",
        "Lengths of sources, such as `8,16`, that part the test sentences into groups, each with a BLEU; '' is none.",
        may_change=True,
    )

    sliced_by = "source"

    def __post_init__(self):
        super().__post_init__()
        self.bounds, self.groups  # noqa: B018

    @property
    def columns(self) -> list[DataColumn]:
        """The columns of the sources and the targets."""
        return [
            DataColumn("source", "data.source_column", self.source_column),
            DataColumn("target", "data.target_column", self.target_column),
        ]

    @property
    def bounds(self) -> tuple[int, ...]:
        """The greatest length of a pair's longer side in each bucket."""
        return parse_bounds(self.buckets, max(self.source_length, self.target_length))

    @property
    def limits(self) -> dict[str, int]:
        """The most tokens of each side, its end token included."""
        return {"source": self.source_length, **super().limits}

    @property
    def groups(self) -> tuple[int, ...]:
        """The longest source of each group that has a BLEU; none without `by_length`."""
        return parse_bounds(self.by_length, self.source_length, "data.by_length") if self.by_length else ()

    @property
    def learned(self) -> dict[str, tuple[str, ...]]:
        """The columns of each tokeniser; see `CachedTextSection`."""
        if self.target_tokeniser:
            return {"source_tokeniser": ("source",), "target_tokeniser": ("target",)}
        return {"source_tokeniser": ("source", "target")}

    def load(self) -> Corpus:
        """Loads the pairs; see `train.data.encodings.corpus.load`.

        Raises:
          UsageError: that raises it, or a tokeniser lacks a special token.
        """
        corpus = load(self)
        self.check_marks(corpus)
        return corpus

    def examples(self, corpus: Corpus) -> dict[str, Sentences]:
        """Makes the sentences that batches are made of, by split."""
        special = {side: tokenisers.marks(tokeniser.special) for side, tokeniser in corpus.tokenisers.items()}
        sentences_of = {part: Sentences(self, tokens, special) for part, tokens in corpus.splits.items()}
        for part, sentences in sentences_of.items():
            least = self.batch_size if part == "train" else 1
            if len(sentences) < least:
                raise UsageError(
                    f"{len(sentences)} pairs of data.{part}_split fit in data.source_length={self.source_length} and "
                    f"data.target_length={self.target_length}, but {least} are needed; raise these lengths, or widen "
                    "the split."
                )
        return sentences_of
