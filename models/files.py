"""Reads text, JSON and NPZ files that anybody may have written, within limits."""

import errno
import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from attention.errors import UsageError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # errors of a disk that takes no more
MOST_BYTES = 2**30  # the largest text file
MOST_DIGITS = 40  # the longest whole number
DEEPEST = 100  # the deepest nesting of lists and objects
ELSEWHERE = "choose another --workdir"
_SURROGATE = re.compile("[\ud800-\udfff]")  # half of a pair, which JSON can write and UTF-8 cannot


def at_home(path: str) -> Path:
    """Expands a path that begins with `~` or `~NAME`; others stay as they are, and so do those of unknown users."""
    return Path(os.path.expanduser(path))


def open_regular(path: Path, mode: str = "r", **options: Any) -> IO:
    """Opens a file as `open` does, but refuses pipes, which might keep it waiting, and devices, which may never end.

    Raises:
      OSError: it is no regular file, or cannot be opened.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path.name} is no file", str(path))
    return open(path, mode, **options)


def read_text(path: Path, remedy: str = ELSEWHERE) -> str:
    """Reads the text of a file.

    Args:
      remedy: What the user can do if it cannot be read.

    Raises:
      UsageError: the file is missing, too large, unreadable or no text.
    """
    try:
        with open_regular(path, encoding="utf-8") as file:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, and at most {MOST_BYTES:,} are read")
            return file.read()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({getattr(error, 'strerror', error)}); {remedy}.") from error


def read_json(path: Path, remedy: str = ELSEWHERE) -> dict[str, Any]:
    """Reads the object in a JSON file; raises UsageError as `read_text` and `parse_json` do."""
    return parse_json(read_text(path, remedy), str(path), remedy)


def parse_json(text: str, where: str, remedy: str) -> dict[str, Any]:
    """Reads a JSON text, which must be an object.

    Args:
      where: What the message calls its place.
      remedy: What the user can do if it is damaged.

    Raises:
      UsageError: it is no JSON or no object, is nested too deeply, or has a number or text that cannot be held.
    """
    try:
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
            raise RecursionError
        if "\\ud" in text.lower() and _SURROGATE.search(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it has half of a surrogate pair")
    except ValueError as error:
        raise UsageError(f"{where} is damaged ({error}); {remedy}.") from error
    except RecursionError as error:
        raise UsageError(f"{where} is damaged (it is nested too deeply); {remedy}.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where} is damaged (no object, but {text[:20]!r}); {remedy}.")
    return value


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level := [outer for outer in level if isinstance(outer, dict | list)]:
        depth += 1
        level = [inner for outer in level for inner in (outer.values() if isinstance(outer, dict) else outer)]
    return depth


def _whole_number(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits, and at most {MOST_DIGITS} are read")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole_number)


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a `.npz` file by name, each read when it is asked for. Arrays of objects are refused.

    Args:
      remedy: What the user can do if it cannot be read.

    Raises:
      UsageError: there is no such file, or it is no such archive; or an array that is asked for is damaged, or larger
        than this machine's memory.
    """

    def __init__(self, path: Path, remedy: str):
        self._path, self._remedy = path, remedy
        if not path.is_file():
            raise UsageError(f"There is no file {str(path)!r}; {remedy}.")
        try:
            with zipfile.ZipFile(path) as archive:
                self._sizes = {i.filename.removesuffix(".npy"): i.file_size for i in archive.infolist()}
        except Exception as error:  # its errors have no common base
            raise self._damaged(error) from error

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, name: object) -> bool:
        return name in self._sizes

    def __getitem__(self, name: str) -> np.ndarray:
        if self._sizes[name] > memory():
            raise UsageError(
                f"{name!r} in {str(self._path)!r} has {self._sizes[name]:,} bytes, and this machine has "
                f"{memory():,}; {self._remedy}."
            )
        try:
            with np.load(self._path) as archive:
                return np.asarray(archive[name])
        except Exception as error:  # of the archive, the header or the numbers
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UsageError:
        return UsageError(f"{str(self._path)!r} cannot be read as a .npz file ({error}); {self._remedy}.")


def memory() -> int:
    """Counts the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
