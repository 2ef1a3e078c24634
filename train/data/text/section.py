"""The `data` sections of configs for text."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from attention.errors import UsageError
from attention.types import Count, Names, Positive, Reader, Sentinel, Unit, at_least, at_most
from models.fields import BOOKKEEPING, field
from train.data import section, sources, tokenisers
from train.data.encodings.corpus import Corpus, Stored, TokenisedSplit, load, with_classes
from train.data.splits import PARTS, Split
from train.data.text.examples import Labelled, MaskedTokens, Masking, NextToken, TextExamples


@dataclasses.dataclass(frozen=True)
class CachedTextSection(section.Section):
    """The base of all sections of text, which may come from the hub and is tokenised once.

    `learned` maps the field of each tokeniser to the columns that it encodes, and learns from if it learns.
    `sliced_by` is the role of the column whose equal values slices keep together; `text` keeps the order of rows
    instead, and `label` shuffles them. `limits` are the most tokens of each column in an example, end tokens included.
    A blank row has `spare` more.
    """

    workers: int = field(0, "Processes that prepare batches; a thread is fast enough for text.")
    revision: str = field(
        "", "Branch, tag or commit of a hub set, such as `refs/convert/parquet`; '' is the default one."
    )
    streaming: bool = field(
        False,
        "Whether to encode a hub set while reading it from the network, instead of downloading it first.",
        role=BOOKKEEPING,
    )
    cache_dir: str = section.cache_dir("tokenised text is")

    end_token = False  # a field of some subclasses
    learned: ClassVar[Mapping[str, tuple[str, ...]]] = {"tokeniser": ("text",)}
    sliced_by: ClassVar[str] = "text"
    spare: ClassVar[int]
    EXAMPLES: ClassVar[type[TextExamples]]

    def load(self) -> Corpus:
        """Loads the corpus; raises UsageError if it cannot be read, or is not what the section asks for."""
        return load(self)

    def examples(self, corpus: Corpus) -> dict[str, TextExamples]:
        """Makes the examples of each split."""
        return {part: self.EXAMPLES(self, split, corpus.tokenisers) for part, split in corpus.splits.items()}

    def blank(self) -> Corpus:
        """Makes a corpus of one row of zeros, for dry runs; raises UsageError if a size is not stated."""
        blank, one = {}, np.ones(1, np.int32)
        for tokeniser, columns in self.learned.items():
            vocabulary = tokeniser.replace("tokeniser", "vocabulary")
            size = getattr(self, vocabulary) or tokenisers.stated_size(getattr(self, tokeniser))
            blank |= dict.fromkeys(columns, section.BlankTokeniser(section.needed(vocabulary, size)))
        texts = {}
        for column, most in self.limits.items():
            length = most + self.spare
            texts[column] = Stored(np.zeros(length, np.int32), one * length, one * length, one * 0)
        split = TokenisedSplit(texts, Split.parse("train"), np.arange(1), classes=(0,))
        return Corpus(blank, dict.fromkeys(PARTS, split))


@dataclasses.dataclass(frozen=True)
class CommonTextData(CachedTextSection):
    """The base of the sections of text in one language."""

    source: Annotated[str, Reader(sources.checker("text"))] = field(
        "pydoc",
        "`pydoc` (the Python manual's topics, in the package), `file:PATH` (a file, folder or glob; see "
        "`train.data.sources.file`), `hf:NAME` or `hf:NAME:CONFIG` (a set on the Hugging Face hub or in a "
        "local folder), or `tfds:NAME`.",
    )
    train_split: str = field(
        "train",
        "Split to learn from, such as `train[:90%]`. Slices count documents: topics, lines of plain text, or rows; see "
        "`train.data.splits`. Documents with classes are shuffled first, always in the same way, so that slices of "
        "sorted sets have all classes.",
    )
    text_column: str = field("text", "Column of the text in a table.")
    tokeniser: Annotated[str, Reader(tokenisers.check)] = field(
        "bytes",
        "`bytes`, `words(size=20000)`, `bpe(size=8192)`, `wordpiece(size=30522)`, `file:PATH` or `hf:NAME`; see "
        "`train.data.tokenisers`. Those with a size learn their vocabulary from the training split.",
    )
    context: Annotated[Count, Unit("tokens")] = field(128, "Tokens in an example.")
    vocabulary: section.Vocabulary = field(0, "Size that the tokeniser's vocabulary must have.", size_of=("tokeniser",))

    COLUMNS: ClassVar[Mapping[str, str]] = {"text": "text_column"}

    spare = 1  # the token after a window

    @property
    def limits(self) -> dict[str, int]:
        return {"text": self.context}


@dataclasses.dataclass(frozen=True)
class UnlabelledTextData(CommonTextData):
    """Text without classes."""

    end_token: bool = field(False, "Whether the tokeniser's end token follows each document.")

    def load(self) -> Corpus:
        corpus = super().load()
        least = 1 + self.EXAMPLES.ahead
        lengths = {part: len(text.ids) for part, text in corpus.splits.items()}
        if lengths["train"] < (window := self.context + self.EXAMPLES.ahead):
            raise UsageError(
                f"The training split has {lengths['train']:,} tokens and one window needs {window:,}; lower "
                "data.context or widen data.train_split."
            )
        for part, tokens in lengths.items():
            if tokens < least:
                raise UsageError(
                    f"The {part} split has {tokens} tokens, too few to predict one; widen data.{part}_split."
                )
        return corpus


@dataclasses.dataclass(frozen=True)
class TextData(UnlabelledTextData):
    """Text for language models."""

    eval_stride: Annotated[Count, Sentinel(0, "`context`, so that windows do not overlap"), Unit("tokens")] = field(
        0, "Tokens from the start of one evaluation window to the next, at most `context`."
    )

    EXAMPLES = NextToken

    def __post_init__(self):
        super().__post_init__()
        if self.eval_stride > self.context:
            raise UsageError(
                f"data.eval_stride must be between 0 (windows that do not overlap) and data.context = {self.context}, "
                f"but it is {self.eval_stride}."
            )


@dataclasses.dataclass(frozen=True)
class MaskedTextData(UnlabelledTextData):
    """Text for masked language models."""

    tokeniser: str = "bpe(size=2048)"  # whose padding is token 1, as in RoBERTa
    context: Annotated[int, at_least(3), Unit("tokens")] = field(
        128, "Tokens in an example, start and end tokens included."
    )
    mask_rate: Annotated[Positive, at_most(1)] = field(0.15, "Probability that a token is chosen for prediction.")

    EXAMPLES = MaskedTokens

    def load(self) -> Corpus:
        corpus = super().load()
        Masking.of(corpus.tokeniser, self.mask_rate)
        return corpus


@dataclasses.dataclass(frozen=True)
class LabelledTextData(CommonTextData):
    """Documents with classes."""

    tokeniser: str = "words(size=20000)"
    label_column: str = field("label", "Column of the class in a table.")
    keep: Annotated[str, Names(("first", "last"))] = field(
        "last", "Which tokens of a document longer than `context` to keep."
    )
    classes: section.Classes = field(0, **section.CLASSES)

    EXAMPLES, sliced_by = Labelled, "label"
    COLUMNS: ClassVar[Mapping[str, str]] = {"text": "text_column", "label": "label_column"}

    def __post_init__(self):
        super().__post_init__()
        if not self.label_column:
            raise UsageError("data.label_column must name the column of the class, but it is empty.")

    def load(self) -> Corpus:
        corpus = with_classes(super().load())
        if len(corpus.class_names) < 2:
            raise UsageError(
                f"All documents have the class {corpus.class_names[0]!r} in {self.label_column!r}; name another "
                "data.label_column, or give data with at least two classes."
            )
        section.check_stated("classes", self.classes, len(corpus.class_names))
        return corpus

    def blank(self) -> Corpus:
        names = tuple(map(str, range(section.needed("classes", self.classes))))
        return dataclasses.replace(super().blank(), class_names=names)
