"""What corpora have in common: opening a source, learning its tokenisers, and its tokenised rows in splits."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from train.data import tokenisers
from train.data.rows.rows import Rows, digest
from train.data.rows.splits import Split
from train.data.store import cache
from train.data.store.tokens import Lazy, Stored, progress, tokenise
from train.data.tokenisers import Tokeniser

Order = Callable[[Split, Callable[[], int]], Int64[np.ndarray, " rows"]]


def original(split: Split, count: Callable[[], int]) -> Int64[np.ndarray, " rows"]:
    """Returns the rows of a split, which is cut from its part as the rows stand there.

    Args:
      split: The split.
      count: Returns the number of rows of the part, which may have to be read for it.

    Raises:
      UsageError: the split is empty or reaches beyond the part.
    """
    return np.arange(*split.bounds(count()))


@dataclasses.dataclass(frozen=True)
class TokenisedSplit(Lazy):
    """A split of tokenised rows, such as documents or pairs.

    Attributes:
      columns: The texts of all rows of the part that the split belongs to.
      split: The split.
      order: Returns the rows of the split, like `original`; a function at the top of a module.
      classes: The number in the corpus of each class of the part.
    """

    columns: Mapping[str, Stored]
    split: Split
    order: Order = original
    classes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> str:
        """A digest of all rows of the part."""
        first, *others = [stored.content for stored in self.columns.values()]
        return digest([first, *others]) if others else first

    @functools.cached_property
    def rows(self) -> Int64[np.ndarray, " rows"]:
        """The indices of the split's rows in the part."""
        return self.order(self.split, lambda: len(self._first))

    @functools.cached_property
    def ids(self) -> Integer[np.ndarray, " tokens"]:
        """The ids of all documents in their original order, end to end, mapped from disk; uint16 or uint32."""
        return self._first.ids[slice(*self._ends(self._first.token_offsets))]

    @property
    def bytes(self) -> int:
        """The number of bytes of documents in their original order, in UTF-8."""
        first, last = self._ends(self._first.byte_offsets)
        return int(last - first)

    @functools.cached_property
    def labels(self) -> Int32[np.ndarray, " rows"]:
        """Each document's class, an index of the corpus's `class_names`."""
        return np.array(self.classes, np.int32)[self._first.labels[self.rows]]

    def row(self, index: int) -> list[Integer[np.ndarray, " tokens"]]:
        """Returns the ids of each column of one row, mapped from disk; uint16 or uint32."""
        row = self.rows[index]
        return [stored.ids[slice(*stored.token_offsets[row : row + 2])] for stored in self.columns.values()]

    def lengths(self, column: str) -> Int64[np.ndarray, " rows"]:
        """Returns the number of tokens of each row in a column."""
        return np.diff(self.columns[column].token_offsets)[self.rows]

    @property
    def _first(self) -> Stored:
        return next(iter(self.columns.values()))

    def _ends(self, offsets: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " 2"]:
        return offsets[[self.rows[0], self.rows[-1] + 1]]


class OpenedSource:
    """The parts of a source that the splits of a `data` section are cut from.

    Attributes:
      splits: The splits `train`, `validation` and `test`.
      rows: The rows of the parts, by the names in the splits.
      cache_dir: The root of all caches.
    """

    def __init__(self, data: Any, load: Callable[[Any, str], Rows]):
        """Opens all parts before any is read, so that a missing one raises an error at once.

        Args:
          data: The section.
          load: Opens a named part of the section's source.

        Raises:
          UsageError: `load` raises it.
        """
        self.splits = Split.of_parts(data)
        self.rows = {split.name: load(data, split.name) for split in self.splits.values()}
        self.cache_dir = cache.root(data.cache_dir)
        self._data = data

    def learn(self, field: str, columns: tuple[str, ...], order: Order, key: tuple[str, ...]) -> Tokeniser:
        """Returns a tokeniser, trained once on the training split where it needs training.

        Args:
          field: The section's field that names it.
          columns: The columns that it is trained on.
          order: The order of the training split.
          key: What identifies columns and order in the cache.

        Raises:
          UsageError: the tokeniser or a package is missing, rows cannot be read, or the cache cannot be written.
        """
        spec, split = getattr(self._data, field), self.splits["train"]
        if not tokenisers.needs_fitting(spec):
            return tokenisers.make(spec, field=f"data.{field}")
        rows = self.rows[split.name]
        texts = _TrainingTexts(rows, columns, split, order)
        path = self.cache_dir / "tokenisers" / f"{digest([spec, digest([rows.content, split.text, *key])])}.json"
        cache.make_once(path, lambda partial: partial.write_text(tokenisers.make(spec, texts).dumps(), "utf-8"))
        return tokenisers.loads(path.read_text(encoding="utf-8"))

    def tokenise(
        self, encoders: Mapping[str, Tokeniser], orders: Mapping[str, Order], end: bool = False
    ) -> dict[str, TokenisedSplit]:
        """Returns the splits, tokenised now or mapped from the cache.

        Args:
          encoders: The tokeniser of each column.
          orders: The order of each split.
          end: Whether each text is followed by the tokeniser's end token.

        Raises:
          UsageError: rows cannot be read, a part or a split has none, or the cache cannot be written.
        """
        stored = {
            name: {c: tokenise(rows.column(c), tokeniser, end, self.cache_dir) for c, tokeniser in encoders.items()}
            for name, rows in self.rows.items()
        }
        tokenised = {part: TokenisedSplit(stored[s.name], s, orders[part]) for part, s in self.splits.items()}
        for split in tokenised.values():
            len(split)  # raises errors of slices at once
        return tokenised


@dataclasses.dataclass(frozen=True)
class _TrainingTexts:
    """Texts of the training split, which can be read again from the start."""

    rows: Rows
    columns: tuple[str, ...]
    split: Split
    order: Order

    def __iter__(self) -> Iterator[str]:
        chosen = itertools.compress(self.rows.read(), self._chosen)
        for row in progress(chosen, f"Learning the vocabulary of {self.rows.name}"):
            yield from (getattr(row, column) for column in self.columns)

    @functools.cached_property
    def _chosen(self) -> Iterable[bool]:
        """Whether each row is in the split; ends with the last row that is, where reading may end."""
        if self.split.is_whole:
            return itertools.repeat(True)
        places = self.order(self.split, lambda: sum(1 for _ in self.rows.read()))
        chosen = np.zeros(places.max(initial=-1) + 1, bool)
        chosen[places] = True
        return chosen
