"""Columns of rows that come as mappings; `translation.de` is the entry `de` of the column `translation`."""

import re
from collections.abc import Mapping
from typing import Any

from attention.errors import UsageError, unknown

_SURROGATE = re.compile("[\ud800-\udfff]")


def get(row: Mapping[str, Any], column: str) -> Any:
    """The value of a column.

    Raises:
      KeyError: there is no such column.
    """
    if column in row:
        return row[column]
    outer, _, inner = column.partition(".")
    if inner and isinstance(row.get(outer), Mapping):
        return get(row[outer], inner)
    raise KeyError(column)


def require(row: Mapping[str, Any], column: str, field: str, where: str) -> Any:
    """The value of a column.

    Args:
      row: Any row, or the features of all.
      column: Its name.
      field: The config field that names it, for the message.
      where: The row, or what has the features, for the message.

    Raises:
      UsageError: there is no such column.
    """
    try:
        return get(row, column)
    except KeyError as error:
        raise unknown(f"{field} for {where}", column, _names(row)) from error


def text(value: object, column: str, where: str) -> str:
    """The value, if it is text.

    Args:
      value: Of the column, in one row.
      column: Its name.
      where: The row, for the message.

    Raises:
      UsageError: it is no text, or not a whole one.
    """
    if not isinstance(value, str):
        raise UsageError(f"{where} has {value!r} in {column!r}, which is no text.")
    if _SURROGATE.search(value):  # JSON can write halves of characters
        raise UsageError(f"{where} has half of a surrogate pair in {column!r}; mend it.")
    return value


def _names(row: Mapping[str, Any]) -> list[str]:
    inner = {name: _names(value) if isinstance(value, Mapping) else [] for name, value in row.items()}
    return [dotted for name, names in inner.items() for dotted in ([f"{name}.{n}" for n in names] or [name])]
