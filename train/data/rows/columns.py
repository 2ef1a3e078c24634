"""Columns of rows that are mappings; `translation.de` is the entry `de` of the column `translation`."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from attention.errors import UsageError, unknown

_SURROGATE = re.compile("[\ud800-\udfff]")
_UNLABELLED = -1  # the class that data sets give to test examples whose class is secret


@dataclasses.dataclass(frozen=True)
class DataColumn:
    """A column that the config names.

    Attributes:
      field: The config field that names it, such as `data.text_column`.
      name: The name of the column, such as `review`.
      is_class: Whether it holds classes; otherwise it holds text.
      classes: The names of the classes that the column numbers; () where it holds the names themselves.
    """

    field: str
    name: str
    is_class: bool = False
    classes: tuple[str, ...] = ()

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

    def value(self, row: Mapping[str, Any], where: str) -> str:
        """Returns the text or the class's name in this column of a row.

        Raises:
          UsageError: there is no such column, or it has no text, half a surrogate pair, or no class.
        """
        value = self.require(row, where)
        return self._class(value, where) if self.is_class else self._text(value, where)

    def _text(self, value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise UsageError(f"{where} has {value!r} in {self.name!r}, which is no text.")
        if _SURROGATE.search(value):  # JSON can write half a surrogate pair
            raise UsageError(f"{where} has half of a surrogate pair in {self.name!r}; mend it.")
        return value

    def _class(self, value: Any, where: str) -> str:
        if value is None or value == "" or (self.classes and value == _UNLABELLED):
            raise UsageError(f"{where} has no class in {self.name!r}; mend it, or use another split.")
        return self.classes[int(value)] if self.classes else str(value)


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
