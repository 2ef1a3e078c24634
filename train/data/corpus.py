"""A corpus: a tokeniser, and tokenised text in splits."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import text_sources, token_cache, tokenisers
from train.data.documents import Documents, digest
from train.data.splits import Split
from train.data.token_cache import Stored
from train.data.tokenisers import Tokeniser

PARTS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Tokens:
    """The documents `start` to `stop` (excluded) of a stored text.

    Attributes:
      stored: All of it.
      start: The first document.
      stop: The one after the last.
      classes: What number each class of `stored` has in the corpus.
    """

    stored: Stored
    start: int
    stop: int
    classes: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Documents."""
        return self.stop - self.start

    @functools.cached_property
    def ids(self) -> Integer[np.ndarray, " tokens"]:
        """Ids of all documents, end to end, on disk; uint16 or uint32."""
        first, last = self.stored.token_offsets[[self.start, self.stop]]
        return self.stored.ids[first:last]

    @functools.cached_property
    def documents(self) -> Int64[np.ndarray, " documents+1"]:
        """Where in `ids` each document begins, and at last where the last one ends."""
        offsets = self.stored.token_offsets
        return offsets[self.start : self.stop + 1] - offsets[self.start]

    @property
    def bytes(self) -> int:
        """Of the text in UTF-8."""
        first, last = self.stored.byte_offsets[[self.start, self.stop]]
        return int(last - first)

    @functools.cached_property
    def labels(self) -> Int32[np.ndarray, " documents"]:
        """Each document's class, a place in the corpus' `class_names`."""
        return np.array(self.classes, np.int32)[self.stored.labels[self.start : self.stop]]

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text.

    Attributes:
      tokeniser: What tokenised it.
      splits: `train`, `validation` and `test`.
      class_names: Of labelled text; () otherwise.
    """

    tokeniser: Tokeniser
    splits: dict[str, Tokens]
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
    documents = {part.name: text_sources.load(data, part.name) for part in parts.values()}
    cache_dir = _cache_dir(data.cache_dir)
    tokeniser = _tokeniser(data.tokeniser, documents[parts["train"].name], parts["train"], cache_dir)
    if end and "end" not in tokeniser.special:
        raise UsageError(
            f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for words, "
            "write words(marks=True))."
        )
    whole = {name: token_cache.stored(docs, tokeniser, end, cache_dir) for name, docs in documents.items()}
    if not data.label_column:
        return Corpus(tokeniser, {part: _slice(whole[split.name], split) for part, split in parts.items()})
    names = _class_names(documents[parts["train"].name], whole[parts["train"].name])
    splits = {part: _slice(whole[split.name], split, names, part) for part, split in parts.items()}
    return Corpus(tokeniser, splits, names)


def _cache_dir(path: str) -> Path:
    return Path(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench").expanduser()


def _tokeniser(spec: str, documents: Documents, split: Split, cache_dir: Path) -> Tokeniser:
    """Trained on the training split alone, once; or as it is."""
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec)
    path = cache_dir / "tokenisers" / f"{digest([spec, documents.content, split.text])}.json"

    def fit(partial: Path) -> None:
        partial.write_text(tokenisers.make(spec, _Texts(documents, split)).dumps(), encoding="utf-8")

    token_cache.once(path, fit)
    return tokenisers.loads(path.read_text(encoding="utf-8"))


@dataclasses.dataclass(frozen=True)
class _Texts:
    """The texts of a slice, read as often as they are iterated over."""

    documents: Documents
    split: Split

    def __iter__(self) -> Iterator[str]:
        chosen = itertools.islice(self.documents.read(), *self._bounds)
        what = f"Learning the vocabulary of {self.documents.name}"
        return (document.text for document in token_cache.progress(chosen, what))

    @functools.cached_property
    def _bounds(self) -> tuple[int | None, int | None]:
        sliced = self.split.start or self.split.stop
        return self.split.bounds(sum(1 for _ in self.documents.read())) if sliced else (None, None)


def _class_names(documents: Documents, stored: Stored) -> tuple[str, ...]:
    """As the source says, else sorted, numbers as numbers."""
    if documents.class_names:
        return documents.class_names
    names = stored.class_names
    return tuple(sorted(names, key=float) if all(map(_is_number, names)) else sorted(names))


def _is_number(name: str) -> bool:
    return name.lstrip("-").replace(".", "", 1).isdecimal()


def _slice(stored: Stored, split: Split, names: tuple[str, ...] = (), part: str = "") -> Tokens:
    strange = [name for name in stored.class_names if name not in names] if names else []
    if strange:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(names)}; look at data.label_column and data.{part}_split."
        )
    classes = tuple(map(names.index, stored.class_names)) if names else ()
    return Tokens(stored, *split.bounds(len(stored)), classes)
