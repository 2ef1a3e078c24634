"""Rows: the stream that every source of text gives, which can be read again from the start, and its columns."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attention.errors import UsageError, unknown

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNLABELLED = -1  # the class that data sets give to test examples whose class is secret


class Document(NamedTuple):
    """A text and its class as the data write it ('' where there is none)."""

    text: str
    label: str = ""


class Pair(NamedTuple):
    """A text and its translation, which are not empty and have no white space around them."""

    source: str
    target: str


class Picture(NamedTuple):
    """An encoded image, as the path of a file or as bytes; its class as the data write it; its place, for messages."""

    image: str | bytes
    label: str
    where: str


Row = Document | Pair | Picture


@dataclasses.dataclass(frozen=True)
class Rows:
    """One part of a source.

    Attributes:
      name: The name in messages, such as `train of file:reviews`.
      content: A digest that differs whenever the rows differ.
      read: Starts reading; raises a UsageError on the way where a row cannot be read. All rows are documents, or all
        are pairs or pictures: their fields are the columns.
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
        side, content = f"the {column} side of {self.name}", digest([self.content, column])
        return Rows(side, content, lambda: (Document(getattr(row, column)) for row in self.read()))


@dataclasses.dataclass(frozen=True)
class DataColumn:
    """A column that the config names, of rows that are mappings; `translation.de` is the entry `de` of `translation`.

    Attributes:
      field: The config field that names it, such as `data.text_column`.
      name: The name of the column, such as `review`.
      is_class: Whether it holds classes.
      is_image: Whether it holds images; otherwise, if no classes either, it holds text.
      guessed: Whether the name is a default, in place of which the only column of such a kind may be taken.
      classes: The names of the classes that the column numbers; () where it holds the names themselves.
    """

    field: str
    name: str
    is_class: bool = False
    is_image: bool = False
    guessed: bool = False
    classes: tuple[str, ...] = ()

    def of(self, classes: Iterable[str]) -> "DataColumn":
        """Returns the column with the names of its classes, if it holds classes."""
        return dataclasses.replace(self, classes=tuple(classes)) if self.is_class else self

    def require(self, row: Mapping[str, Any], where: str) -> Any:
        """Returns the entry of a row, or of a mapping of all features, in this column.

        Args:
          row: The entries by column, which may be nested.
          where: The name of the row or of the features, for the message.

        Raises:
          UsageError: there is no such column.
        """
        try:
            return _get(row, self.name)
        except KeyError as error:
            raise unknown(f"{self.field} for {where}", self.name, _names(row)) from error

    def value(self, row: Mapping[str, Any], where: str) -> str | bytes:
        """Returns the text, the class's name or the image in this column of a row.

        Raises:
          UsageError: there is no such column, or it has no text, half a surrogate pair, no class or no image.
        """
        value = self.require(row, where)
        if self.is_image:
            return self._image(value, where)
        return self._class(value, where) if self.is_class else self._text(value, where)

    def _image(self, value: Any, where: str) -> str | bytes:
        encoded = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
        if not isinstance(encoded, str | bytes) or not encoded:
            raise UsageError(f"{where} has no image in {self.name!r}; mend it, or remove the row.")
        return encoded

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise UsageError(f"{where} has {value!r} in {self.name!r}, which is no text.")
        if _SURROGATE.search(value):  # JSON can write half a surrogate pair
            raise UsageError(f"{where} has half of a surrogate pair in {self.name!r}; mend it.")
        return value

    def _class(self, value: Any, where: str) -> str:
        if value is None or value == "" or (self.classes and value == _UNLABELLED):
            raise UsageError(f"{where} has no class in {self.name!r}; mend it, or use another split.")
        if not self.classes:
            return str(value)
        if value not in range(len(self.classes)):
            last = len(self.classes) - 1
            raise UsageError(f"{where} has {value!r} in {self.name!r}, but classes are numbers from 0 to {last}.")
        return self.classes[int(value)]


def _get(row: Mapping[str, Any], column: str) -> Any:
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    if inner and isinstance(row.get(outer), Mapping):
        return _get(row[outer], inner)
    raise KeyError(column)


def _names(row: Mapping[str, Any]) -> list[str]:
    inner = {name: _names(value) if isinstance(value, Mapping) else [] for name, value in row.items()}
    return [dotted for name, names in inner.items() for dotted in ([f"{name}.{n}" for n in names] or [name])]


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
