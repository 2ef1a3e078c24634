"""Local files, compressed or not: finding those of a split, and reading them as streams of lines or of rows."""

import bz2
import contextlib
import csv
import gzip
import hashlib
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from glob import glob
from pathlib import Path
from typing import Any, BinaryIO

from attention.errors import UsageError, unknown
from train.data.rows.splits import PARTS

_OPEN = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
KINDS = (".txt", ".csv", ".tsv", ".parquet", ".jsonl")
FORMS = f"a file, folder or glob of {', '.join(KINDS)}, which may be compressed ({', '.join(_OPEN)})"


def find(path: str, split: str, forms: str = FORMS) -> list[Path]:
    """The files of one split, sorted.

    Args:
      path: A file, a glob, or a folder. In a folder, the files whose names begin with a split's (`train.csv`,
        `valid-00.txt.xz`; `valid`, `val` and `dev` are `validation`) are that split. Without any such file, and for a
        file or a glob, everything is `train`.
      split: A plain name, no slice.
      forms: What may be given, for the message.

    Raises:
      UsageError: no such file or split, or a file that is none of KINDS.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        groups = by_split([file for file in sorted(place.iterdir()) if file.is_file() and suffix(file) in KINDS])
    else:
        files = [place] if place.is_file() else [Path(name) for name in sorted(glob(str(place), recursive=True))]
        groups = {"train": [file for file in files if file.is_file()]}
    if not any(groups.values()):
        raise UsageError(f"There is no file to read at {path!r}; data.source names it: give {forms}.")
    found = choose(groups, split, path)
    for file in found:
        if suffix(file) not in KINDS:
            raise UsageError(f"Cannot tell from its name what {str(file)!r} is; give {forms}.")
    return found


def by_split(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Files by the split that their names begin with; all are `train` where none does."""
    files = list(files)
    groups: dict[str, list[Path]] = {}
    for file in files:
        name = re.split(r"[.\-_]", file.name)[0]
        groups.setdefault(_ALIASES.get(name, name), []).append(file)
    return {name: group for name, group in groups.items() if name in PARTS} or {"train": files}


def choose(groups: Mapping[str, list[Path]], split: str, path: str) -> list[Path]:
    """The group of a split.

    Args:
      groups: See `by_split`.
      split: A plain name, no slice.
      path: Where they were found, for the message.

    Raises:
      UsageError: there is no such split.
    """
    wanted = _ALIASES.get(split, split)
    if wanted not in groups:
        raise UsageError(
            f"{unknown(f'split of file:{path}', split, groups)} A part of one is a split too, such as "
            f"{next(iter(groups))}[90%:]."
        )
    return groups[wanted]


def plain_name(file: Path) -> str:
    """The name without what compression adds to it."""
    return file.stem if file.suffix in _OPEN else file.name


def suffix(file: Path) -> str:
    """What the name says of the content, compressed or not, such as `.csv`."""
    return Path(plain_name(file)).suffix.lower()


def fingerprint(file: Path) -> str:
    """A hash of the bytes as they lie there.

    Raises:
      UsageError: the file is empty or cannot be read.
    """
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


def lines(file: Path) -> Iterator[str]:
    """The lines, each with its end.

    Raises:
      UsageError: on the way, where the file cannot be read or is no UTF-8.
    """
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


def rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a table, each with where it stands, for messages.

    Raises:
      UsageError: on the way, where the file is not as its kind should be.
    """
    return ((f"{str(file)!r} ({place})", row) for place, row in _TABLES[suffix(file)](file))


def _csv_rows(file: Path, **options: Any) -> Iterator[tuple[str, dict[str, str]]]:
    csv.field_size_limit(sys.maxsize)  # of the whole process; the default refuses long documents
    rows = csv.reader(lines(file), strict=True, **options)
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
    for number, line in enumerate(lines(file), 1):
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
