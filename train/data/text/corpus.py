"""A corpus: a tokeniser, and tokenised text in splits."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import stated
from train.data.rows.rows import Rows
from train.data.rows.splits import Split
from train.data.store import cache, vocabulary
from train.data.store.tokens import Lazy, Stored, tokenise
from train.data.text import sources
from train.data.tokenisers import Tokeniser

_ORDER = 1  # the version of `shuffled`; with another number vocabularies are learned again


@dataclasses.dataclass(frozen=True)
class Slice(Lazy):
    """The documents `start` to `stop` (excluded) of a stored text.

    Attributes:
      stored: The whole text, in its original order.
      start: The first document.
      stop: The document after the last.
    """

    stored: Stored
    start: int
    stop: int

    def __len__(self) -> int:
        """Returns the number of documents."""
        return self.stop - self.start

    @property
    def content(self) -> str:
        """A digest of the whole stored text."""
        return self.stored.content


class RunningText(Slice):
    """Documents in their original order."""

    @functools.cached_property
    def ids(self) -> Integer[np.ndarray, " tokens"]:
        """The ids of all documents, end to end, mapped from disk; uint16 or uint32."""
        first, last = self.stored.token_offsets[[self.start, self.stop]]
        return self.stored.ids[first:last]

    @property
    def bytes(self) -> int:
        """The number of bytes of the text in UTF-8."""
        first, last = self.stored.byte_offsets[[self.start, self.stop]]
        return int(last - first)


@dataclasses.dataclass(frozen=True)
class LabelledText(Slice):
    """Documents in the order of `shuffled`, with their classes.

    Attributes:
      classes: The number in the corpus of each class of `stored`.
    """

    classes: tuple[int, ...]

    def ids(self, index: int) -> Integer[np.ndarray, " tokens"]:
        """Returns the ids of one document, mapped from disk; uint16 or uint32."""
        row = self.rows[index]
        first, last = self.stored.token_offsets[row : row + 2]
        return self.stored.ids[first:last]

    @functools.cached_property
    def rows(self) -> Int64[np.ndarray, " documents"]:
        """The index in `stored` of each document."""
        return shuffled(len(self.stored))[self.start : self.stop]

    @functools.cached_property
    def labels(self) -> Int32[np.ndarray, " documents"]:
        """Each document's class, an index of the corpus's `class_names`."""
        return np.array(self.classes, np.int32)[self.stored.labels[self.rows]]


def shuffled(length: int) -> Int64[np.ndarray, " length"]:
    """Returns 0 … length - 1 in a fixed random order, which does not depend on the version of NumPy.

    Labelled documents are sliced in this order: many sets are sorted by class, and one end of them has one class.
    """
    return np.argsort(np.random.PCG64(0).random_raw(length), kind="stable")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text.

    Attributes:
      tokeniser: The tokeniser of the text.
      splits: `train`, `validation` and `test`; with classes where the text is labelled.
      class_names: The names of the classes of labelled text; () otherwise.
    """

    tokeniser: Tokeniser
    splits: dict[str, RunningText] | dict[str, LabelledText]
    class_names: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes - 1."""
        return len(self.class_names)


def load(data: Any, end: bool = False) -> Corpus:
    """Reads, tokenises and caches the text that a `data` section names; later calls only map the cache.

    Args:
      data: A section of `train.data.text`.
      end: Whether each document is followed by the tokeniser's end token.

    Raises:
      UsageError: text, a tokeniser or a package is not there or cannot be read, classes differ between splits, or the
        cache cannot be written.
    """
    splits = Split.of_parts(data)
    # All are opened before the first is read, so that a missing one raises an error at once.
    documents = {split.name: sources.load(data, split.name) for split in splits.values()}
    cache_dir, train = cache.root(data.cache_dir), splits["train"]
    texts = _texts(documents[train.name], train, bool(data.label_column))
    tokeniser = vocabulary.learned(data.tokeniser, texts, cache_dir, "data.tokeniser")
    stated.check("vocabulary", data.vocabulary, tokeniser.size)
    if end and "end" not in tokeniser.special:
        raise UsageError(
            f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for words, "
            "write words(marks=True))."
        )
    stored = {name: tokenise(rows, tokeniser, end, cache_dir) for name, rows in documents.items()}
    texts = {part: stored[split.name] for part, split in splits.items()}
    if not data.label_column:
        running = {part: RunningText(text, *splits[part].bounds(len(text))) for part, text in texts.items()}
        return Corpus(tokeniser, running)
    names = _class_names(documents[train.name], texts["train"])
    return Corpus(tokeniser, {part: _labelled(text, splits[part], names, part) for part, text in texts.items()}, names)


def _texts(documents: Rows, split: Split, labelled: bool) -> vocabulary.Texts:
    """Returns the texts that a vocabulary is learned from, in the part's order even where its slices have another."""
    key = (split.text, f"order {_ORDER}" if labelled else "")
    return vocabulary.Texts(documents, ("text",), key, functools.partial(_chosen, documents, split, labelled))


def _chosen(documents: Rows, split: Split, labelled: bool) -> Iterable[bool]:
    if split.is_whole:
        return itertools.repeat(True)
    length = sum(1 for _ in documents.read())
    order = shuffled(length) if labelled else np.arange(length)
    return vocabulary.mask(order[slice(*split.bounds(length))])


def _class_names(documents: Rows, stored: Stored) -> tuple[str, ...]:
    """Returns the class names in the source's order, or else sorted, numbers as numbers."""
    if documents.class_names:
        return documents.class_names
    names = stored.class_names
    return tuple(sorted(names, key=float) if all(map(_is_number, names)) else sorted(names))


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", name) is not None


def _labelled(stored: Stored, split: Split, names: tuple[str, ...], part: str) -> LabelledText:
    strange = [name for name in stored.class_names if name not in names]
    if strange:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(names)}; look at data.label_column and data.{part}_split."
        )
    numbers = {name: number for number, name in enumerate(names)}
    return LabelledText(stored, *split.bounds(len(stored)), tuple(numbers[name] for name in stored.class_names))
