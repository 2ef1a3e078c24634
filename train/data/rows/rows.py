"""Rows: the stream that every source of text gives, which can be read again from the start."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from train.data.rows.columns import DataColumn


class Document(NamedTuple):
    """A text and its class as the data write it ('' where there is none)."""

    text: str
    label: str = ""


class Pair(NamedTuple):
    """A text and its translation, which are not empty and have no white space around them."""

    source: str
    target: str


Row = Document | Pair


@dataclasses.dataclass(frozen=True)
class Rows:
    """One part of a source.

    Attributes:
      name: The name in messages, such as `train of file:reviews`.
      content: A digest that differs whenever the rows differ.
      read: Starts reading; raises a UsageError on the way where a row cannot be read. All rows are documents, or all
        are pairs: their fields are the columns.
      class_names: The names of the classes in the source's order; () where the source does not name them.
    """

    name: str
    content: str
    read: Callable[[], Iterator[Row]]
    class_names: tuple[str, ...] = ()

    def column(self, column: str) -> "Rows":
        """Returns the documents themselves for `text`, or the `source` or `target` of pairs as documents."""
        if column == "text":
            return self
        return Rows(f"the {column} side of {self.name}", digest([self.content, column]), lambda: self._side(column))

    def _side(self, column: str) -> Iterator[Document]:
        return (Document(getattr(row, column)) for row in self.read())


@dataclasses.dataclass(frozen=True)
class OpenedSplit:
    """A split of a source, opened for some of its columns.

    Attributes:
      name: The name in messages, such as `train of hf:NAME`.
      columns: The columns to read, with the names of their classes.
      read: Starts reading rows by column, each with its place, for messages.
      version: A text that differs whenever the rows differ.
      files: The kinds and hashes of its files, which also differ whenever the rows differ.
    """

    name: str
    columns: Sequence[DataColumn]
    read: Callable[[], Iterator[tuple[str, Mapping[str, Any]]]]
    version: Sequence[str] = ()
    files: Sequence[str] = ()

    def rows(self, make: Callable[[Iterator[tuple[str, ...]]], Iterator[Row]], key: Iterable[object]) -> Rows:
        """Returns the rows that `make` makes of the place and the columns of each row.

        Args:
          make: A function at the top of a module, since rows are sent to other processes.
          key: Values that the digest depends on besides the split, such as the names of the columns.
        """
        class_names = sum((column.classes for column in self.columns), ())
        content = digest([*self.version, *key, *self.files])
        return Rows(self.name, content, functools.partial(self._read, make), class_names)

    def _read(self, make: Callable[[Iterator[tuple[str, ...]]], Iterator[Row]]) -> Iterator[Row]:
        return make((where, *(column.value(row, where) for column in self.columns)) for where, row in self.read())


def brief(error: Exception) -> str:
    """Returns the first line of a library's message, for use inside a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".:") or type(error).__name__


def digest(values: Iterable[object]) -> str:
    """Returns a short hash of the printed values, in order."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()[:32]
