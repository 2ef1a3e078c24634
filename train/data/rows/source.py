"""Rows of what a config's `data.source` names: `file:PATH`, `hf:NAME` or `tfds:NAME`."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from train.data.rows import hub, local, tfds
from train.data.rows.columns import Column
from train.data.rows.rows import Row, Rows

KINDS = ("file:PATH", "hf:NAME", "hf:NAME:CONFIG", "tfds:NAME", "tfds:NAME/CONFIG")
Values = Iterator[tuple[str, ...]]  # of each row: where it stands, for messages, and what its columns hold


class Table(Protocol):
    """A split of a source, before columns are chosen.

    Attributes:
      name: For messages, such as `train of hf:NAME`.
    """

    name: str

    def checked(self, column: Column) -> Column:
        """The column with its class names; raises a UsageError where it is known not to be there."""

    def content(self, key: Iterable[object]) -> str:
        """A digest that differs whenever the rows or the key differ."""

    def reader(self, columns: Sequence[Column]) -> Callable[[], Iterator[tuple[str, Mapping[str, Any]]]]:
        """What starts reading rows with these columns, each with where it stands, for messages."""


def is_one(source: str) -> bool:
    """Whether it is written as one of KINDS."""
    kind, _, name = source.partition(":")
    return kind in ("file", "hf", "tfds") and bool(name)


def open_table(data: Any, split: str) -> Table:
    """Opens a split.

    Args:
      data: Fields `source` (one of KINDS), `revision`, `streaming` and `data_dir`.
      split: A plain name, no slice.

    Raises:
      UsageError: the source or split is not there, or cannot be read as it is.
    """
    kind, _, name = data.source.partition(":")
    if kind == "file":
        return local.open_split(name, split)
    return hub.open_split(name, split, data) if kind == "hf" else tfds.open_split(name, split, data.data_dir)


def rows(
    table: Table, columns: Sequence[Column], make: Callable[[Values], Iterator[Row]], key: Iterable[object]
) -> Rows:
    """Some columns of a table.

    Args:
      table: See `open_table`.
      columns: Which ones, at most one of them a class.
      make: Makes rows of their values.
      key: What the digest depends on beside the table.

    Raises:
      UsageError: there is no such column, or the table has no classes.
    """
    columns = [table.checked(column) for column in columns]
    read = functools.partial(_read, table.reader(columns), columns, make)
    return Rows(table.name, table.content(key), read, sum((column.classes for column in columns), ()))


def _read(
    reader: Callable[[], Iterator[tuple[str, Mapping[str, Any]]]],
    columns: Sequence[Column],
    make: Callable[[Values], Iterator[Row]],
) -> Iterator[Row]:
    return make((where, *(column.value(row, where) for column in columns)) for where, row in reader())
