"""Rows with named columns, which every source gives, and the values that a column may hold."""

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
_UNLABELLED = -1  # the class of test examples whose real class is secret

Row = dict[str, Any]  # values by role, and `where`, the row's place for messages
Placed = tuple[str, Mapping[str, Any]]  # a row's place, and its values by the source's own names


@dataclasses.dataclass(frozen=True)
class Rows:
    """One split of a source."""

    name: str  # for messages
    content: str  # a digest that differs whenever the rows differ
    read: Callable[[], Iterator[Row]]  # starts reading; a row that cannot be read raises UsageError
    class_names: tuple[str, ...] = ()  # in the source's order; () if it names none
    # Columns by role if they are in memory: `image` uint8 (n, H, W, C), `label` (n,).
    arrays: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    records: Sequence[Row] = ()  # by number, if the source has random access
    image_shape: tuple[int, ...] = ()  # (H, W, C) of all images if the source says it; 0 is any


@dataclasses.dataclass(frozen=True)
class DataColumn:
    """A column that a config field names; `translation.de` is the entry `de` of the column `translation`.

    A label or image column named like its role is a default: a source without it may take its only column of that kind.
    """

    role: str  # how it is read: `text`, `source`, `target`, `label` or `image`
    field: str
    name: str
    classes: tuple[str, ...] = ()  # the names behind the column's numbers; () if it holds names

    def require(self, row: Mapping[str, Any], where: str) -> Any:
        """Finds this column in a row, or among all features; raises UsageError if it is missing."""
        try:
            return _get(row, self.name)
        except KeyError as error:
            raise unknown(f"{self.field} for {where}", self.name, _names(row)) from error

    def value(self, row: Mapping[str, Any], where: str) -> str | bytes:
        """Reads a row's text, class name or image; raises UsageError if it has none."""
        value = self.require(row, where)
        if self.role == "image":
            return self._image(value, where)
        return self._class(value, where) if self.role == "label" else self._text(value, where)

    def _image(self, value: object, where: str) -> str | bytes:
        encoded = value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value
        if not isinstance(encoded, str | bytes) or not encoded:
            raise UsageError(f"{where} has no image in {self.name!r}; fix it, or remove the row.")
        return encoded

    def _text(self, value: object, where: str) -> str:
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value
        if not isinstance(text, str):
            raise UsageError(f"{where} has {value!r} in {self.name!r}, which is not text.")
        if _SURROGATE.search(text):  # JSON can write half a surrogate pair
            raise UsageError(f"{where} has half of a surrogate pair in {self.name!r}, or is not in UTF-8; fix it.")
        return text

    def _class(self, value: Any, where: str) -> str:
        if value is None or value == "" or (self.classes and value == _UNLABELLED):
            raise UsageError(f"{where} has no class in {self.name!r}; fix it, or use another split.")
        if not self.classes:
            return str(value)
        if value not in range(len(self.classes)):
            last = len(self.classes) - 1
            raise UsageError(f"{where} has {value!r} in {self.name!r}, but classes are numbers from 0 to {last}.")
        return self.classes[int(value)]


def picked(
    name: str, columns: Sequence[DataColumn], version: Iterable[object], read: Callable[[], Iterator[Placed]]
) -> Rows:
    """Picks columns, at most one of them a label, from all rows that `read` yields; their `version` identifies them."""
    content = digest([*version, *(f"{column.role} {column.name}" for column in columns)])
    class_names = sum((column.classes for column in columns), ())
    return Rows(name, content, lambda: (row_of(columns, *placed) for placed in read()), class_names)


def in_memory(name: str, arrays: Mapping[str, np.ndarray], class_names: tuple[str, ...] = ()) -> Rows:
    """Makes rows from columns in memory by role; `label` numbers the classes, which may have names."""
    content = hashlib.blake2b(digest_size=16)
    for array in arrays.values():
        content.update(np.ascontiguousarray(array))
    return Rows(name, content.hexdigest(), functools.partial(_zipped, name, arrays), class_names, arrays)


def _zipped(name: str, arrays: Mapping[str, np.ndarray]) -> Iterator[Row]:
    for number, values in enumerate(zip(*arrays.values(), strict=True)):
        row = {role: value if value.ndim else value.item() for role, value in zip(arrays, values, strict=True)}
        yield {"where": f"Row {number} of {name}"} | row


def row_of(columns: Sequence[DataColumn], where: str, entries: Mapping[str, Any]) -> Row:
    """Reads the columns of one row; see `DataColumn.value`."""
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
    """Hashes printed values, in order."""
    return hashlib.sha256("\0".join(map(str, values)).encode()).hexdigest()[:32]
