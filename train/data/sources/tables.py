"""The rows of one local file: a table, or plain text.

The package `datasets` reads such files too, but changes them: it guesses types, so that the class `007` becomes 7 and
the text `NA` becomes None, and converts the ends of lines.
"""

import csv
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from models.files import parse_json
from train.data.sources import lines
from train.data.sources.rows import DataColumn, Placed

KINDS = (".txt", ".csv", ".tsv", ".parquet", ".jsonl")


def read(file: Path, columns: Sequence[DataColumn]) -> Iterator[Placed]:
    """Yields the rows of a file of one of KINDS, each with its place for messages; a bad row raises UsageError.

    Plain text has one column of any name, the line with its end, or tab-separated columns whose names are numbers from
    '1'. Tables give all their columns.
    """
    if lines.suffix(file) == ".txt":
        plain = ((f"line {n}", {columns[0].name: line}) for n, line in enumerate(lines.read(file), 1))
        rows = plain if len(columns) == 1 else _tabbed(file, columns)
    else:
        rows = _TABLES[lines.suffix(file)](file)
    images = [column.name for column in columns if column.role == "image"]
    return ((f"{str(file)!r} ({place})", _beside(file, row, images)) for place, row in rows)


def _beside(file: Path, row: Mapping[str, Any], images: Sequence[str]) -> Mapping[str, Any]:
    """Resolves relative paths of images from the folder of their table."""
    paths = {name: row[name] for name in images if isinstance(row.get(name), str) and row[name]}
    return {**row, **{name: str(file.parent / path) for name, path in paths.items()}} if paths else row


def _tabbed(file: Path, columns: Sequence[DataColumn]) -> Iterator[Placed]:
    numbers = [_number(column, file) for column in columns]
    for number, line in enumerate(lines.read(file), 1):
        texts = line.split("\t")
        if not line.strip():
            continue
        if len(texts) == 1:
            raise UsageError(f"{str(file)!r} (line {number}) has no tab between source and target; fix it.")
        if len(texts) < max(numbers):
            raise UsageError(
                f"{str(file)!r} (line {number}) has {len(texts)} columns, but "
                f"{' and '.join(column.field for column in columns)} are {' and '.join(map(str, numbers))}."
            )
        yield f"line {number}", {column.name: texts[n - 1] for column, n in zip(columns, numbers, strict=True)}


def _number(column: DataColumn, file: Path) -> int:
    if not (column.name.isdecimal() and int(column.name)):
        raise UsageError(
            f"{str(file)!r} is plain text without a header, so {column.field} must be the number of a column from '1' "
            f"on, but it is {column.name!r}."
        )
    return int(column.name)


def _csv(file: Path, **options: Any) -> Iterator[Placed]:
    csv.field_size_limit(sys.maxsize)  # for the whole process; the default refuses long documents
    rows = csv.reader(lines.read(file), strict=True, **options)
    try:
        header = next(rows, [])
        for row in filter(None, rows):
            if len(row) != len(header):
                raise UsageError(
                    f"{str(file)!r}, line {rows.line_num} has {len(row)} fields and the header {len(header)}; fix it."
                )
            yield f"line {rows.line_num}", dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{str(file)!r}, line {rows.line_num} is not as CSV should be ({error}); fix it.") from error


def _json(file: Path) -> Iterator[Placed]:
    for number, line in enumerate(lines.read(file), 1):
        if line.strip():
            yield f"line {number}", parse_json(line, f"{str(file)!r}, line {number}", "write one object a line")


def _parquet(file: Path) -> Iterator[Placed]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as table:
            rows = (row for batch in table.iter_batches(batch_size=1024) for row in batch.to_pylist())
            yield from ((f"row {number}", row) for number, row in enumerate(rows))
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{str(file)!r} cannot be read as Parquet ({error}); write it again.") from error


_TABLES = {
    ".csv": _csv,
    ".tsv": functools.partial(_csv, delimiter="\t", quoting=csv.QUOTE_NONE),  # quotation marks are text there
    ".parquet": _parquet,
    ".jsonl": _json,
}
