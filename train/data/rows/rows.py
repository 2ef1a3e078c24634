"""What every source of text gives: a stream of rows that can be read again from the start."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from train.data.rows.columns import DataColumn


class Document(NamedTuple):
    """A text, with its class as the data write it ('' where there is none)."""

    text: str
    label: str = ""


class Pair(NamedTuple):
    """A text and its translation, neither empty nor with white space around it."""

    source: str
    target: str


Row = Document | Pair


@dataclasses.dataclass(frozen=True)
class Rows:
    """One part of a source.

    Attributes:
      name: For messages, such as `train of file:reviews`.
      content: A digest that differs whenever the rows differ.
      read: Starts reading; raises a UsageError on the way where a row cannot be read. All rows are documents, or all
        are pairs: their fields are the columns.
      class_names: Of documents with classes, in the source's order; () where the source does not say.
    """

    name: str
    content: str
    read: Callable[[], Iterator[Row]]
    class_names: tuple[str, ...] = ()

    def side(self, column: str) -> "Rows":
        """Of pairs: the `source` or `target` column, as documents."""
        return Rows(f"the {column} side of {self.name}", digest([self.content, column]), lambda: self._side(column))

    def _side(self, column: str) -> Iterator[Document]:
        return (Document(getattr(row, column)) for row in self.read())


@dataclasses.dataclass(frozen=True)
class OpenedSplit:
    """A split of a source, opened for some of its columns.

    Attributes:
      name: For messages, such as `train of hf:NAME`.
      columns: Those that are wanted, with the names of their classes.
      read: Starts reading rows by column, each with where it stands, for messages.
      version: Differs whenever the rows differ.
      files: What is in its files, likewise.
    """

    name: str
    columns: Sequence[DataColumn]
    read: Callable[[], Iterator[tuple[str, Mapping[str, Any]]]]
    version: Sequence[str] = ()
    files: Sequence[str] = ()

    def rows(self, make: Callable[[Iterator[tuple[str, ...]]], Iterator[Row]], key: Iterable[object]) -> Rows:
        """The rows that `make` makes of where rows stand and what their columns hold.

        Args:
          make: A function of a module, as rows are sent to other processes.
          key: What their digest depends on beside the split, such as the names of the columns.
        """
        class_names = sum((column.classes for column in self.columns), ())
        content = digest([*self.version, *key, *self.files])
        return Rows(self.name, content, functools.partial(self._read, make), class_names)

    def _read(self, make: Callable[[Iterator[tuple[str, ...]]], Iterator[Row]]) -> Iterator[Row]:
        return make((where, *(column.value(row, where) for column in self.columns)) for where, row in self.read())


def brief(error: Exception) -> str:
    """The first line of a library's message, to stand inside a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".:") or type(error).__name__


def digest(values: Iterable[object]) -> str:
    """A short hash of values as they are printed, in order."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()[:32]
