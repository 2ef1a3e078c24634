"""What every source of text gives: a stream of rows that can be read again from the start."""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


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


def digest(values: Iterable[object]) -> str:
    """A short hash of values as they are printed, in order."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()[:32]
