"""Rows: what every source gives, with named columns, and what a column must hold."""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attention.errors import UsageError, unknown

_SURROGATE = re.compile("[\ud800-\udfff]")
IMAGE_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # Pillow would run programs for some others
_UNLABELLED = -1  # the class that data sets give to test examples whose class is secret

Row = dict[str, Any]  # the value of each column by its role, and `where`, the row's place for messages
Placed = tuple[str, Mapping[str, Any]]  # a row's place, and its entries by the source's own names


@dataclasses.dataclass(frozen=True)
class Rows:
    """One split of a source, which messages call by its name."""

    name: str
    content: str  # a digest that differs whenever the rows differ
    read: Callable[[], Iterator[Row]]  # starts reading; raises a UsageError on the way where a row cannot be read
    class_names: tuple[str, ...] = ()  # in the source's order; () where it names none
    # The columns by role where they are in memory: `image` uint8 (n, H, W, C), `label` (n,).
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    records: Sequence[Row] = ()  # by number, where a source has random access
    image_shape: tuple[int, ...] = ()  # (H, W, C) of all images where the source says it; 0 is any


@dataclasses.dataclass(frozen=True)
class DataColumn:
    """A column that a config field names; `translation.de` is the entry `de` of the column `translation`.

    The name of a label or an image that is its role is a default, in place of which a source may take the only column
    of that kind.
    """

    role: str  # what it is read as: `text`, `source`, `target`, `label` or `image`
    field: str
    name: str
    classes: tuple[str, ...] = ()  # the names that the column numbers; () where it holds the names themselves

    def require(self, row: Mapping[str, Any], where: str) -> Any:
        """Finds this column in a row, or among all features; raises UsageError, which says where, if it is missing."""
        try:
            return _get(row, self.name)
        except KeyError as error:
            raise unknown(f"{self.field} for {where}", self.name, _names(row)) from error

    def value(self, row: Mapping[str, Any], where: str) -> str | bytes:
        """Reads the text, the class's name or the image of a row; raises UsageError where there is none in it."""
        value = self.require(row, where)
        if self.role == "image":
            return self._image(value, where)
        return self._class(value, where) if self.role == "label" else self._text(value, where)

    def _image(self, value: object, where: str) -> str | bytes:
        encoded = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
        if not isinstance(encoded, str | bytes) or not encoded:
            raise UsageError(f"{where} has no image in {self.name!r}; mend it, or remove the row.")
        return encoded

    def _text(self, value: object, where: str) -> str:
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise UsageError(f"{where} has {value!r} in {self.name!r}, which is no text.")
        if _SURROGATE.search(text):  # JSON can write half a surrogate pair
            raise UsageError(f"{where} has half of a surrogate pair in {self.name!r}, or is not in UTF-8; mend it.")
        return text

    def _class(self, value: Any, where: str) -> str:
        if value is None or value == "" or (self.classes and value == _UNLABELLED):
            raise UsageError(f"{where} has no class in {self.name!r}; mend it, or use another split.")
        if not self.classes:
            return str(value)
        if value not in range(len(self.classes)):
            last = len(self.classes) - 1
            raise UsageError(f"{where} has {value!r} in {self.name!r}, but classes are numbers from 0 to {last}.")
        return self.classes[int(value)]


def picked(
    name: str, columns: Sequence[DataColumn], version: Iterable[object], read: Callable[[], Iterator[Placed]]
) -> Rows:
    """Picks columns, of which at most one is a label, of all rows that `read` yields; `version` differs if these do."""
    content = digest([*version, *(f"{column.role} {column.name}" for column in columns)])
    class_names = sum((column.classes for column in columns), ())
    return Rows(name, content, lambda: (row_of(columns, *placed) for placed in read()), class_names)


def in_memory(name: str, arrays: Mapping[str, np.ndarray], class_names: tuple[str, ...] = ()) -> Rows:
    """Makes rows of columns in memory by role; `label` numbers the classes, which may have names."""
    content = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        content.update(np.ascontiguousarray(array))
    return Rows(name, content.hexdigest(), functools.partial(_zipped, name, arrays), class_names, arrays)


def _zipped(name: str, arrays: Mapping[str, np.ndarray]) -> Iterator[Row]:
    for number, values in enumerate(zip(*arrays.values(), strict=True)):
        row = {role: value if value.ndim else value.item() for role, value in zip(arrays, values, strict=True)}
        yield {"where": f"Row {number} of {name}"} | row


def row_of(columns: Sequence[DataColumn], where: str, entries: Mapping[str, Any]) -> Row:
    """Reads the columns of one row; raises as `DataColumn.value` does."""
    return {"where": where} | {column.role: column.value(entries, where) for column in columns}


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


def digest(values: Iterable[object]) -> str:
    """Hashes the printed values, in order."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()[:32]
