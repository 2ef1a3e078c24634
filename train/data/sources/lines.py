"""The lines of local files, compressed or not."""

import bz2
import contextlib
import gzip
import hashlib
import lzma
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from attention.errors import UsageError

OPENERS = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def plain_name(file: Path) -> str:
    """Strips a compression suffix from a file's name."""
    return file.stem if file.suffix in OPENERS else file.name


def suffix(file: Path) -> str:
    """Finds the suffix of the content, such as `.csv`, before any compression suffix."""
    return Path(plain_name(file)).suffix.lower()


def fingerprint(file: Path) -> str:
    """Hashes a file's bytes as they are; raises UsageError if it is empty or cannot be read."""
    with _opened(file, {}) as stream:
        return hashlib.file_digest(stream, "blake2b").hexdigest()


def stamp(path: str, where: str) -> str:
    """Gives a text that changes with a file's size and time; raises UsageError if there is no such file."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # a pipe may never end
            raise ValueError("it is not a file")
    except (OSError, ValueError) as error:
        raise UsageError(f"{where} names {path!r}, which cannot be read ({error}); fix it, or remove it.") from error
    return f"{status.st_size} {status.st_mtime_ns}"


def read(file: Path) -> Iterator[str]:
    """Yields the lines with their ends; raises UsageError if they cannot be read or are not UTF-8."""
    with _opened(file, OPENERS) as stream:
        for number, line in enumerate(stream, 1):
            yield _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, file, number)


@contextlib.contextmanager
def _opened(file: Path, openers: Mapping[str, Callable[..., BinaryIO]]) -> Iterator[BinaryIO]:
    """Opens a file with the opener for its suffix, and turns errors of reading it into a UsageError."""
    try:
        if not file.stat().st_size:
            raise UsageError(f"{str(file)!r} is empty; remove it or give another.")
        with openers.get(file.suffix, open)(file, "rb") as stream:
            yield stream
    except FileNotFoundError as error:
        raise UsageError(f"There is no file {str(file)!r}; give the path of one.") from error
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UsageError(f"Cannot read {str(file)!r} ({error}); fix it, or fetch it again.") from error


def _decode(line: bytes, file: Path, number: int) -> str:
    if b"\0" in line:
        raise UsageError(f"{str(file)!r} holds a zero byte in line {number}: it is not text, or not in UTF-8.")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{str(file)!r} is not in UTF-8: line {number} has the byte 0x{line[error.start]:02x} at position "
            f"{error.start + 1}; convert it, for instance with `iconv -f LATIN1 -t UTF-8`."
        ) from error
