"""The `data` section of configs for translation."""

import dataclasses

from attention.errors import UsageError
from models.fields import field
from train.data import stated, tokenisers
from train.data.pairs import bitext, sources
from train.data.pairs.batches import Sentences
from train.data.pairs.bitext import Bitext
from train.data.pairs.bucketing import parse_bounds
from train.data.rows.splits import PARTS, Split
from train.data.store.tokenised_splits import TokenisedSplit
from train.data.store.tokens import BlankText
from train.data.text.section import CachedTextSection, blank_tokeniser


@dataclasses.dataclass(frozen=True)
class TranslationData(CachedTextSection):
    """Parallel text."""

    source: str = field(
        "dates()",
        "`dates(...)` (dates written out in several languages, in the package; see `train.data.pairs.dates`), "
        "`file:PATH` (a table, lines of pairs parted by tabs, or two files that are aligned line by line; see "
        "`train.data.pairs.sources`), `hf:NAME` or `hf:NAME:CONFIG`, or `tfds:NAME`.",
        reads=sources.check,
    )
    train_split: str = field(
        "train",
        "Such as `train[:70%]`, in pairs. Slices are cut after shuffling, always alike, and never part the "
        "translations of one source sentence.",
    )
    batch_size: int = 64
    eval_batch_size: int = 128
    source_column: str = field(
        "source",
        "Of tables: the column of what is translated; `translation.de` is the key `de` in the column `translation`. Of "
        "lines parted by tabs: its number, from 1. Of aligned files: the end of their names.",
    )
    target_column: str = field("target", "Likewise of the translations.")
    source_tokeniser: str = field(
        "bytes",
        "`bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH`, `hf:NAME` or "
        "`marian:NAME/source.spm`; see `train.data.tokenisers`. It needs a start and an end token.",
        reads=tokenisers.check,
    )
    target_tokeniser: str = field(
        "",
        "Likewise of the target.",
        reads=tokenisers.check,
        special={"": "the source's, which then learns from both sides"},
    )
    source_vocabulary: int = stated.vocabulary("What the source's tokeniser must have.", "source_tokeniser")
    target_vocabulary: int = stated.vocabulary(
        "What the target's tokeniser must have; a shared one as many as the source's.",
        "source_tokeniser",
        "target_tokeniser",
    )
    source_length: int = field(
        64,
        "Of a source at most, its end token included. Longer pairs are left out, and counted.",
        least=1,
        unit="tokens",
    )
    target_length: int = field(64, "Of a target at most, its end token included.", least=1, unit="tokens")
    buckets: str = field(
        "", "Lengths below the longest that batches of shorter pairs are padded to, such as `8,16`; '' is none."
    )
    translations: int = field(
        0,
        "How many validation sentences each evaluation translates, for BLEU. At the end all test sentences are.",
        least=1,
        special={0: "none"},
        may_change=True,
    )
    by_length: str = field(
        "",
        "Lengths of sources, such as `8,16`, that part the test sentences into groups, each with a BLEU; '' is none.",
        may_change=True,
    )
    beams: int = field(1, "Of these translations; 1 is greedy.", least=1, may_change=True)
    length_penalty: float = field(
        1.0, "Of beam search: the power of the length that log-probabilities are divided by.", may_change=True
    )

    def __post_init__(self):
        super().__post_init__()
        self.bounds, self.groups  # noqa: B018

    @property
    def bounds(self) -> tuple[int, ...]:
        """The greatest length of a pair's longer side in each bucket."""
        return parse_bounds(self.buckets, max(self.source_length, self.target_length))

    @property
    def limits(self) -> dict[str, int]:
        """The most tokens of each side, its end token included."""
        return {"source": self.source_length, "target": self.target_length}

    @property
    def groups(self) -> tuple[int, ...]:
        """The longest source of each group that has a BLEU; none without `by_length`."""
        return parse_bounds(self.by_length, self.source_length, "data.by_length") if self.by_length else ()

    def load(self) -> Bitext:
        """Loads the pairs; see `train.data.pairs.bitext.load`.

        Raises:
          UsageError: `bitext.load` raises it, or a tokeniser lacks a special token.
        """
        corpus = bitext.load(self)
        for side, tokeniser in (("source", corpus.source_tokeniser), ("target", corpus.target_tokeniser)):
            missing = [name for name in ("start", "end") if name not in tokeniser.special]
            if missing:
                spec = getattr(self, f"{side}_tokeniser") or self.source_tokeniser
                raise UsageError(
                    f"Translation needs a start and an end token, but {spec!r} has no {missing[0]}; for words, write "
                    "words(marks=True)."
                )
        return corpus

    def blank(self) -> Bitext:
        """Returns one pair of zeros of the greatest length, which replaces the pairs in a dry run.

        Raises:
          UsageError: a size is not stated.
        """
        source = blank_tokeniser("source_vocabulary", self.source_vocabulary, self.source_tokeniser)
        target = source
        if self.target_tokeniser:
            target = blank_tokeniser("target_vocabulary", self.target_vocabulary, self.target_tokeniser)
        sides = {side: BlankText(length=length - 1) for side, length in self.limits.items()}
        return Bitext(source, target, dict.fromkeys(PARTS, TokenisedSplit(sides, Split.parse("train"))), pairs={})

    def examples(self, corpus: Bitext) -> dict[str, Sentences]:
        """Returns the sentences that batches are made of, by split."""
        special = {"source": corpus.source_tokeniser.special, "target": corpus.target_tokeniser.special}
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
