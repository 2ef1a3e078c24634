"""A corpus: a tokeniser, and tokenised text in splits."""

import dataclasses
import functools
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import stated, tokenisers
from train.data.rows.splits import PARTS, Split
from train.data.store import stored as token_cache
from train.data.store.stored import Stored
from train.data.text import sources
from train.data.text.documents import Documents, digest
from train.data.tokenisers import Tokeniser

_ORDER = 1  # of `shuffled`; another number learns vocabularies anew


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The documents `start` to `stop` (excluded) of a stored text, in its own order.

    Attributes:
      stored: All of it.
      start: The first document.
      stop: The one after the last.
    """

    stored: Stored
    start: int
    stop: int

    def __len__(self) -> int:
        """Documents."""
        return self.stop - self.start

    @property
    def content(self) -> str:
        """A digest of the whole stored text."""
        return self.stored.content

    @functools.cached_property
    def ids(self) -> Integer[np.ndarray, " tokens"]:
        """Ids of all documents, end to end, on disk; uint16 or uint32."""
        first, last = self.stored.token_offsets[[self.start, self.stop]]
        return self.stored.ids[first:last]

    @property
    def bytes(self) -> int:
        """Of the text in UTF-8."""
        first, last = self.stored.byte_offsets[[self.start, self.stop]]
        return int(last - first)

    def __getstate__(self) -> dict[str, Any]:
        return _fields(self)


@dataclasses.dataclass(frozen=True)
class LabelledTokens:
    """The documents `start` to `stop` (excluded) of a stored text after `shuffled`, with their classes.

    Attributes:
      stored: All of it, in its own order.
      start: The first document.
      stop: The one after the last.
      classes: What number each class of `stored` has in the corpus.
    """

    stored: Stored
    start: int
    stop: int
    classes: tuple[int, ...]

    def __len__(self) -> int:
        """Documents."""
        return self.stop - self.start

    @property
    def content(self) -> str:
        """A digest of the whole stored text."""
        return self.stored.content

    def ids(self, index: int) -> Integer[np.ndarray, " tokens"]:
        """Ids of one document, on disk; uint16 or uint32."""
        row = self.rows[index]
        first, last = self.stored.token_offsets[row : row + 2]
        return self.stored.ids[first:last]

    @functools.cached_property
    def rows(self) -> Int64[np.ndarray, " documents"]:
        """Where in `stored` each document is."""
        return shuffled(len(self.stored))[self.start : self.stop]

    @functools.cached_property
    def labels(self) -> Int32[np.ndarray, " documents"]:
        """Each document's class, a place in the corpus' `class_names`."""
        return np.array(self.classes, np.int32)[self.stored.labels[self.rows]]

    def __getstate__(self) -> dict[str, Any]:
        return _fields(self)


def shuffled(length: int) -> Int64[np.ndarray, " length"]:
    """0 … length - 1 in an order of chance that is always the same, whatever the version of NumPy.

    Labelled documents are sliced in this order: many sets are sorted by class, and one end of them has one class.
    """
    return np.argsort(np.random.PCG64(0).random_raw(length), kind="stable")


def _fields(part: Any) -> dict[str, Any]:
    """What pickles of it: no array, which is opened or made again."""
    return {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text.

    Attributes:
      tokeniser: What tokenised it.
      splits: `train`, `validation` and `test`; with classes where the text is labelled.
      class_names: Of labelled text; () otherwise.
    """

    tokeniser: Tokeniser
    splits: dict[str, Tokens] | dict[str, LabelledTokens]
    class_names: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes - 1."""
        return len(self.class_names)


def load(data: Any, end: bool = False) -> Corpus:
    """Reads, tokenises and caches what a `data` section names; the second time it only maps the cache.

    Args:
      data: A section of `train.data.text`.
      end: Whether each document is followed by the tokeniser's end token.

    Raises:
      UsageError: text, a tokeniser or a package is not there or cannot be read, classes differ between splits, or the
        cache cannot be written.
    """
    parts = {part: Split.parse(getattr(data, f"{part}_split")) for part in PARTS}
    # All are opened before the first is read: what is missing is said at once.
    documents = {part.name: sources.load(data, part.name) for part in parts.values()}
    cache_dir = cache_folder(data.cache_dir)
    chosen = _Texts(documents[parts["train"].name], parts["train"], bool(data.label_column))
    tokeniser = learned_tokeniser(data.tokeniser, chosen, cache_dir, "data.tokeniser")
    stated.check("vocabulary", data.vocabulary, tokeniser.size)
    if end and "end" not in tokeniser.special:
        raise UsageError(
            f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for words, "
            "write words(marks=True))."
        )
    whole = {name: token_cache.stored(docs, tokeniser, end, cache_dir) for name, docs in documents.items()}
    if not data.label_column:
        tokens = {part: whole[split.name] for part, split in parts.items()}
        return Corpus(tokeniser, {part: Tokens(t, *parts[part].bounds(len(t))) for part, t in tokens.items()})
    names = _class_names(documents[parts["train"].name], whole[parts["train"].name])
    splits = {part: _labelled(whole[split.name], split, names, part) for part, split in parts.items()}
    return Corpus(tokeniser, splits, names)


def cache_folder(path: str) -> Path:
    """Root of all caches: what `data.cache_dir` names, or where it is when that is ''."""
    return Path(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench").expanduser()


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The texts of a slice, read as often as they are iterated over.

    Attributes:
      documents: The part that is sliced.
      split: The slice.
      labelled: Whether the part is sliced after `shuffled`. The texts come in the part's own order all the same.
    """

    documents: Documents
    split: Split
    labelled: bool

    @property
    def content(self) -> str:
        """A digest that differs whenever the texts differ."""
        return digest([self.documents.content, self.split.text, f"order {_ORDER}" if self.labelled else ""])

    def __iter__(self) -> Iterator[str]:
        chosen = itertools.compress(self.documents.read(), self._chosen)
        what = f"Learning the vocabulary of {self.documents.name}"
        return (document.text for document in token_cache.progress(chosen, what))

    @functools.cached_property
    def _chosen(self) -> Iterable[bool]:
        """Whether each document is in the slice."""
        if not (self.split.start or self.split.stop):
            return itertools.repeat(True)
        length = sum(1 for _ in self.documents.read())
        start, stop = self.split.bounds(length)
        chosen = np.zeros(length, bool)
        chosen[shuffled(length)[start:stop] if self.labelled else slice(start, stop)] = True
        return np.trim_zeros(chosen, "b")  # reading ends with the last one


class Texts(Protocol):
    """What a vocabulary is learned from; `content` is a digest of it."""

    content: str

    def __iter__(self) -> Iterator[str]: ...


def learned_tokeniser(spec: str, texts: Texts, cache_dir: Path, field: str) -> Tokeniser:
    """The tokeniser of a config field's spec string: trained on the training split alone, once; or as it is."""
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec, field=field)
    path = cache_dir / "tokenisers" / f"{digest([spec, texts.content])}.json"
    token_cache.once(path, lambda partial: partial.write_text(tokenisers.make(spec, texts).dumps(), encoding="utf-8"))
    return tokenisers.loads(path.read_text(encoding="utf-8"))


def _class_names(documents: Documents, stored: Stored) -> tuple[str, ...]:
    """As the source says, else sorted, numbers as numbers."""
    if documents.class_names:
        return documents.class_names
    names = stored.class_names
    return tuple(sorted(names, key=float) if all(map(_is_number, names)) else sorted(names))


def _is_number(name: str) -> bool:
    return re.fullmatch(r"-?\d+(\.\d+)?", name) is not None


def _labelled(stored: Stored, split: Split, names: tuple[str, ...], part: str) -> LabelledTokens:
    strange = [name for name in stored.class_names if name not in names]
    if strange:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(names)}; look at data.label_column and data.{part}_split."
        )
    numbers = {name: number for number, name in enumerate(names)}
    return LabelledTokens(stored, *split.bounds(len(stored)), tuple(numbers[name] for name in stored.class_names))
