"""Parallel text by name: `dates(...)`, `file:PATH`, `hf:NAME` or `tfds:NAME`, as rows that are pairs."""

import textwrap
from collections.abc import Iterator
from typing import Any

from attention.errors import UsageError
from train.data import options
from train.data.pairs.dates import Dates
from train.data.rows import source
from train.data.rows.rows import DataColumn, Pair, Rows

KINDS = ("dates", "dates(sources=('en', 'fr'), targets=('de',))", *source.KINDS)
FIELDS = ("data.source_column", "data.target_column")


def check(name: str, path: str = "data.source") -> None:
    """Raises UsageError unless the source is written as one of KINDS, with valid options; opens nothing."""
    if not source.is_one(name):
        _dates(name, path)


def load(data: Any, split: str) -> Rows:
    """Opens one part of a source.

    Args:
      data: Fields `source`, `source_column`, `target_column`, `revision`, `streaming` and `data_dir`. Columns of tables
        may be nested, such as `translation.de`; those of plain text between tabs are numbers from '1' on, those of
        aligned files languages; dates have none.
      split: A plain name, no slice.

    Raises:
      UsageError: no such source, split, file or column; or something that cannot be read as it is.
    """
    if not source.is_one(data.source):
        return _dates(data.source).read(split)
    names = (data.source_column, data.target_column)
    if "" in names or names[0] == names[1]:
        raise UsageError(f"{' and '.join(FIELDS)} must name two columns (or languages), but they are {names}.")
    columns = [DataColumn(field, name) for field, name in zip(FIELDS, names, strict=True)]
    return source.open_split(data, split, columns).rows(stripped, names)


def stripped(rows: Iterator[tuple[str, ...]]) -> Iterator[Pair]:
    """Yields pairs without white space around them; leaves out pairs of empty sides, which many corpora have.

    Args:
      rows: The place of each pair, for messages, its source and its target.

    Raises:
      UsageError: only one side of a pair is empty; raised on reaching it.
    """
    for where, first, second in rows:
        pair = Pair(first.strip(), second.strip())
        if all(pair):
            yield pair
        elif any(pair):
            empty, filled = ("source", "target") if pair.target else ("target", "source")
            there = textwrap.shorten(max(pair), 60, placeholder=" …")
            raise UsageError(f"{where} has an empty {empty} beside the {filled} {there!r}; mend or remove the pair.")


def _dates(name: str, path: str = "data.source") -> Dates:
    item = options.parse_one(name, path, ["dates"], KINDS)
    options.check_names(item, Dates)
    return Dates(**item.options)
