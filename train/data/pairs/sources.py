"""Parallel text by name: `dates(...)`, `file:PATH`, `hf:NAME` or `tfds:NAME`, as streams of pairs."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attention.errors import UsageError, unknown
from models import specs
from train.data.pairs import files
from train.data.pairs.dates import Dates
from train.data.pairs.files import FIELDS
from train.data.pairs.pair import Pair, Pairs, stripped
from train.data.rows import columns, hub, tfds
from train.data.text.documents import digest

KINDS = (
    "dates",
    "dates(sources=('en', 'fr'), targets=('de',))",
    "file:PATH",
    "hf:NAME",
    "hf:NAME:CONFIG",
    "tfds:NAME",
    "tfds:NAME/CONFIG",
)


def check(source: str) -> None:
    """Raises a UsageError unless `source` is written as one of KINDS, with options that are right; opens nothing."""
    kind, _, rest = source.partition(":")
    if not (kind in ("file", "hf", "tfds") and rest):
        _dates(source)


def load(data: Any, split: str) -> Pairs:
    """Opens one part of a source.

    Args:
      data: Fields `source`, `source_column`, `target_column`, `revision`, `streaming` and `data_dir`. Of the columns
        see `train.data.pairs.files.read`; those of sets may be nested, such as `translation.de`; dates have none.
      split: A plain name, no slice.

    Raises:
      UsageError: no such source, split, file or column; or something that cannot be read as it is.
    """
    check(data.source)
    kind, _, name = data.source.partition(":")
    if kind not in ("file", "hf", "tfds"):
        return _dates(data.source).read(split)
    names = (data.source_column, data.target_column)
    if "" in names or names[0] == names[1]:
        raise UsageError(f"{' and '.join(FIELDS)} must name two columns (or languages), but they are {names}.")
    if kind == "file":
        return files.read(name, split, names)
    return (_of_hub if kind == "hf" else _of_tfds)(name, split, data, names)


def _dates(source: str) -> Dates:
    try:
        [call] = specs.parse(source)
    except ValueError as error:  # it cannot be read, or is none or several
        raise unknown("data.source", source, KINDS) from error
    if call.name != "dates":
        raise unknown("data.source", source, KINDS)
    return Dates.make(call.options)


def _pairs(rows: Callable[..., Iterator[tuple[str, str, str]]], *arguments: Any) -> Iterator[Pair]:
    """Of rows that a function reads; workers can be sent it, unlike a closure."""
    return stripped(rows(*arguments))


def _of_hub(name: str, split: str, data: Any, names: tuple[str, str]) -> Pairs:
    opened = hub.open_split(name, split, data)
    for field, column in zip(FIELDS, names, strict=True):
        opened.feature(field, column)
    content = digest([opened.version, *names])
    return Pairs(opened.name, content, functools.partial(_pairs, _hub_rows, opened, names))


def _hub_rows(opened: hub.HubSplit, names: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    for where, row in opened.read(names):
        yield where, *(columns.text(columns.get(row, name), name, where) for name in names)


def _of_tfds(name: str, split: str, data: Any, names: tuple[str, str]) -> Pairs:
    opened = tfds.open_split(name, split, data.data_dir)
    for field, column in zip(FIELDS, names, strict=True):
        opened.check_text(field, column)
    where, content, records = f"{split} of tfds:{name}", digest([opened.version, *names]), opened.records()
    return Pairs(where, content, functools.partial(_pairs, _tfds_rows, records, names, where))


def _tfds_rows(records: Sequence[dict[str, Any]], names: tuple[str, str], where: str) -> Iterator[tuple[str, str, str]]:
    for number, record in enumerate(records):
        yield f"Example {number} of {where}", *(columns.get(record, name).decode() for name in names)
