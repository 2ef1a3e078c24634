"""Text in local files, read as a stream: one document a line of text, or a row of a table."""

import bz2
import contextlib
import csv
import functools
import gzip
import hashlib
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO

from attention.errors import UsageError, unknown
from train.data.documents import Document, Documents, digest

_OPEN = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_SPLITS = ("train", "validation", "test")
_SURROGATE = re.compile("[\ud800-\udfff]")


def read(path: str, split: str, text_column: str, label_column: str) -> Documents:
    """The documents of one split.

    Args:
      path: A file, a glob, or a folder. In a folder, the files whose names begin with a split's (`train.csv`,
        `valid-00.txt.xz`; `valid`, `val` and `dev` are `validation`) are that split. Without any such file, and for a
        file or a glob, everything is `train`.
      split: A plain name, no slice.
      text_column: Of tables: the column of the text.
      label_column: Of tables: the column of the class; '' for none.

    Raises:
      UsageError: no such file or split; reading raises it for content that is not what it should be.
    """
    files = _find(path, split)
    kinds = [_kind(file) for file in files]
    if label_column and ".txt" in kinds:
        raise UsageError(f"{str(files[0])!r} is plain text, which has no classes; use one of {', '.join(_TABLES)}.")
    content = digest([text_column, label_column, *kinds, *map(_hash, files)])
    columns = (text_column, label_column)
    return Documents(f"{split} of file:{path}", content, functools.partial(_documents, files, columns))


def _documents(files: list[Path], columns: tuple[str, str]) -> Iterator[Document]:
    for file in files:
        kind = _kind(file)
        yield from _lines_of(file) if kind == ".txt" else _rows(file, _TABLES[kind], columns)


def _find(path: str, split: str) -> list[Path]:
    place = Path(path).expanduser()
    if not place.is_dir():
        files = [place] if place.is_file() else [Path(name) for name in sorted(glob(str(place), recursive=True))]
        groups = {"train": [file for file in files if file.is_file()]}
    else:
        groups = _groups(place)
    if not any(groups.values()):
        raise UsageError(f"There is no file to read at {path!r}; data.source names it: give {_FORMS}.")
    wanted = _ALIASES.get(split, split)
    if wanted not in groups:
        raise UsageError(
            f"{unknown(f'split of file:{path}', split, groups)} A part of one is a split too, such as "
            f"{next(iter(groups))}[90%:]."
        )
    return groups[wanted]


def _groups(folder: Path) -> dict[str, list[Path]]:
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and _suffix(file) in _KINDS]
    groups: dict[str, list[Path]] = {}
    for file in files:
        name = re.split(r"[.\-_]", file.name)[0]
        groups.setdefault(_ALIASES.get(name, name), []).append(file)
    named = {name: group for name, group in groups.items() if name in _SPLITS}
    return named or {"train": files}


def _suffix(file: Path) -> str:
    return (Path(file.stem) if file.suffix in _OPEN else file).suffix.lower()


def _kind(file: Path) -> str:
    if _suffix(file) not in _KINDS:
        raise UsageError(f"Cannot tell from its name what {str(file)!r} is; give {_FORMS}.")
    return _suffix(file)


def _hash(file: Path) -> str:
    with _opened(file, {}) as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


@contextlib.contextmanager
def _opened(file: Path, openers: Mapping[str, Callable[..., BinaryIO]]) -> Iterator[BinaryIO]:
    """The bytes of a file, through the opener of its suffix; what goes wrong with them is a UsageError."""
    try:
        if not file.stat().st_size:
            raise UsageError(f"{str(file)!r} is empty; remove it or give another.")
        with openers.get(file.suffix, open)(file, "rb") as stream:
            yield stream
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UsageError(f"Cannot read {str(file)!r} ({error}); mend it, or fetch it again.") from error


def _lines(file: Path) -> Iterator[str]:
    with _opened(file, _OPEN) as stream:
        for number, line in enumerate(stream, 1):
            yield _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, file, number)


def _decode(line: bytes, file: Path, number: int) -> str:
    if b"\0" in line:
        raise UsageError(f"{str(file)!r} holds a zero byte in line {number}: it is no text, or not in UTF-8.")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{str(file)!r} is not in UTF-8: line {number} has the byte 0x{line[error.start]:02x} at position "
            f"{error.start + 1}; convert it, for instance with `iconv -f LATIN1 -t UTF-8`."
        ) from error


def _lines_of(file: Path) -> Iterator[Document]:
    return map(Document, _lines(file))


def _rows(
    file: Path, rows: Callable[[Path], Iterator[tuple[str, Any]]], columns: tuple[str, str]
) -> Iterator[Document]:
    """The two columns of a table whose rows come as (where, mapping)."""
    for number, (where, row) in enumerate(rows(file)):
        place = f" ({where})" if number else ""  # rows of JSON may differ
        for field, column in zip(("data.text_column", "data.label_column"), columns, strict=True):
            if column and column not in row:
                raise unknown(f"{field} for {str(file)!r}{place}", column, row)
        text, label = row[columns[0]], row[columns[1]] if columns[1] else ""
        if not isinstance(text, str):
            raise UsageError(f"{str(file)!r}, {where} has {text!r} in {columns[0]!r}, which is no text.")
        if _SURROGATE.search(text):  # JSON can write halves of characters
            raise UsageError(f"{str(file)!r}, {where} has half of a surrogate pair in {columns[0]!r}; mend it.")
        if label is None or (columns[1] and label == ""):
            raise UsageError(f"{str(file)!r}, {where} has no class in {columns[1]!r}.")
        yield Document(text, str(label))


def _csv_rows(file: Path, **options: Any) -> Iterator[tuple[str, dict[str, str]]]:
    csv.field_size_limit(sys.maxsize)  # of the whole process; the default refuses long documents
    rows = csv.reader(_lines(file), strict=True, **options)
    try:
        header = next(rows, [])
        for row in rows:
            if row and len(row) != len(header):
                raise UsageError(
                    f"{str(file)!r}, line {rows.line_num} has {len(row)} fields and the header {len(header)}; mend it."
                )
            if row:
                yield f"line {rows.line_num}", dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UsageError(f"{str(file)!r}, line {rows.line_num} is not as CSV should be ({error}); mend it.") from error


def _tsv_rows(file: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """TSV has no quotes: a quotation mark is part of the text."""
    return _csv_rows(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _json_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(f"{str(file)!r}, line {number} is no JSON ({error}); write one object a line.") from error
        if not isinstance(row, dict):
            raise UsageError(f"{str(file)!r}, line {number} is no JSON object; write one object a line.")
        yield f"line {number}", row


def _parquet_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(file) as table:
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    yield f"row {number}", row
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise UsageError(f"{str(file)!r} cannot be read as Parquet ({error}); write it again.") from error


_TABLES = {".csv": _csv_rows, ".tsv": _tsv_rows, ".parquet": _parquet_rows, ".jsonl": _json_rows}
_KINDS = (".txt", *_TABLES)
_FORMS = f"a file, folder or glob of {', '.join(_KINDS)}, which may be compressed ({', '.join(_OPEN)})"
