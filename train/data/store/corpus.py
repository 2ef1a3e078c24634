"""A corpus: tokenisers, which are learned from its training split, and tokenised rows in splits."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from train.data import section, tokenisers
from train.data.rows.rows import Rows, digest
from train.data.rows.splits import Split, opened
from train.data.store import blocks, cache
from train.data.store.blocks import CheckedArray
from train.data.store.tokens import Lazy, Stored, progress, tokenise

ORDER = 1  # the version of all orders but the original; with another number, they and vocabularies are made again

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
    def ids(self) -> CheckedArray:
        """The ids of all documents in their original order, end to end, mapped from disk; uint16 or uint32."""
        return self._first.ids.part(*map(int, self._ends(self._first.token_offsets)))

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


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text, whose columns are `text`, or `source` and `target`.

    Attributes:
      tokenisers: The tokeniser of each column; one object where columns share it.
      splits: `train`, `validation` and `test`.
      rows: The rows of the parts that the splits are cut from, by the names of the parts.
      class_names: The names of the classes of labelled text; () otherwise.
    """

    tokenisers: dict[str, tokenisers.Tokeniser]
    splits: dict[str, TokenisedSplit]
    rows: dict[str, Rows] = dataclasses.field(default_factory=dict)
    class_names: tuple[str, ...] = ()

    @property
    def tokeniser(self) -> tokenisers.Tokeniser:
        """The tokeniser of what the model writes: of the text, or of the target."""
        return list(self.tokenisers.values())[-1]

    def texts(self, part: str, column: str, indices: Integer[np.ndarray, " k"]) -> list[str]:
        """Returns the text in a column of some rows of a split."""
        tokens = self.splits[part]
        places = {int(row): place for place, row in enumerate(tokens.rows[indices])}
        texts = [""] * len(places)
        for number, row in enumerate(self.rows[tokens.split.name].read()):
            if number in places:
                texts[places[number]] = getattr(row, column)
        return texts


def load(data: Any, open_part: Callable[[Any, str], Rows], order_of: Callable[[Split, Rows, Path], Order]) -> Corpus:
    """Reads, tokenises and caches the text that a `data` section names; later calls only map the cache.

    Args:
      data: A `train.data.text.section.CachedTextSection`.
      open_part: Opens a named part of the section's source.
      order_of: Returns the order of a split of some rows, given the root of all caches.

    Raises:
      UsageError: text, a tokeniser or a package is missing or cannot be read, or the cache cannot be written.
    """
    cache_dir = cache.root(data.cache_dir)
    splits, rows = opened(data, functools.partial(open_part, data))
    orders = {part: order_of(split, rows[split.name], cache_dir) for part, split in splits.items()}
    training, tokeniser_of = splits["train"], {}
    for field, columns in data.learned.items():
        texts = _TrainingTexts(rows[training.name], columns, training, orders["train"])
        tokeniser_of |= dict.fromkeys(columns, _learn(getattr(data, field), f"data.{field}", texts, cache_dir))
    for column, tokeniser in tokeniser_of.items():
        field = f"{column}_vocabulary".removeprefix("text_")
        section.check_stated(field, getattr(data, field), tokeniser.size)
        if data.end_token and "end" not in tokeniser.special:
            raise UsageError(
                f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for "
                "words, write words(marks=True))."
            )
    stored = {
        name: {c: tokenise(part.column(c), made, data.end_token, cache_dir) for c, made in tokeniser_of.items()}
        for name, part in rows.items()
    }
    tokenised = {part: TokenisedSplit(stored[split.name], split, orders[part]) for part, split in splits.items()}
    for split in tokenised.values():
        len(split)  # raises errors of slices at once
    return Corpus(tokeniser_of, tokenised, rows)


def _learn(spec: str, field: str, texts: "_TrainingTexts", cache_dir: Path) -> tokenisers.Tokeniser:
    """Returns a tokeniser, trained once where it needs training."""
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec, field=field)
    path = cache_dir / "tokenisers" / f"{digest([spec, texts.content])}.json"
    cache.make_once(path, lambda partial: partial.write_text(tokenisers.make(spec, texts).dumps(), "utf-8"))
    return tokenisers.loads(blocks.read(path).decode())


@dataclasses.dataclass(frozen=True)
class _TrainingTexts:
    """Texts of the training split, which can be read again from the start."""

    rows: Rows
    columns: tuple[str, ...]
    split: Split
    order: Order

    @property
    def content(self) -> str:
        """A digest that differs whenever the texts differ."""
        sides = () if "text" in self.columns else self.columns
        order = "" if self.order is original else f"order {ORDER}"
        return digest([self.rows.content, self.split.text, *sides, order])

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
