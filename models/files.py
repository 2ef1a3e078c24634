"""The one place that reads JSON and NPZ files, which anybody may have written, with the limits of what is read."""

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

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # a disk that takes no more
MOST_BYTES = 2**30  # of a file of text
MOST_DIGITS = 40  # of a whole number
DEEPEST = 100  # lists and objects in each other
ELSEWHERE = "choose another --workdir"
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair, which JSON can write and UTF-8 cannot


def at_home(path: str) -> Path:
    """Expands a path that may begin with `~` or `~NAME`; where there is no such user, it stays as it is."""
    return Path(os.path.expanduser(path))


def open_regular(path: Path, mode: str = "r", **options: Any) -> IO:
    """Opens a file as `open` does, but refuses a pipe, at which that would wait, and a device, which may never end.

    Raises:
      OSError: it is no regular file, or cannot be opened.
    """
    return open(path, mode, opener=_open_regular, **options)


def _open_regular(path: str, flags: int) -> int:
    if os.path.exists(path) and not os.path.isfile(path):
        raise OSError(errno.EINVAL, f"{os.path.basename(path)} is no file", path)
    return os.open(path, flags, 0o666)


def read_text(path: Path, remedy: str = ELSEWHERE) -> str:
    """Reads the text of a file.

    Args:
      remedy: What the user can do where it cannot be read.

    Raises:
      UsageError: the file is missing, too large, cannot be read or holds no text.
    """
    try:
        with open_regular(path, encoding="utf-8") as file:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"it has {path.stat().st_size:,} bytes, and at most {MOST_BYTES:,} are read")
            return file.read()
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({getattr(error, 'strerror', error)}); {remedy}.") from error


def read_json(path: Path, remedy: str = ELSEWHERE) -> dict[str, Any]:
    """Reads the object in a JSON file; raises a UsageError as `read_text` does, or where the file is damaged."""
    return parse_json(read_text(path, remedy), str(path), remedy)


def parse_json(text: str, where: str, remedy: str) -> dict[str, Any]:
    """Reads a JSON text, which must be an object.

    Args:
      where: The name of its place, for the message.
      remedy: What the user can do where it is damaged.

    Raises:
      UsageError: it is no JSON or no object, is nested too deeply, or has what Python's texts and numbers cannot hold.
    """
    try:
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") > DEEPEST and _depth(value) > DEEPEST:
            raise RecursionError
        if "\\ud" in text.lower() and _HALF.search(json.dumps(value, ensure_ascii=False)):
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
    """The arrays of a `.npz` file by name, each read when it is asked for; none holds objects.

    Args:
      remedy: What the user can do where it cannot be read.

    Raises:
      UsageError: there is no such file, or it is no such archive; on asking for an array, it is damaged or is larger
        than this machine's memory.
    """

    def __init__(self, path: Path, remedy: str):
        self._path, self._remedy = path, remedy
        if not path.is_file():
            raise UsageError(f"There is no file {str(path)!r}; {remedy}.")
        try:
            with zipfile.ZipFile(path) as archive:
                self._sizes = {i.filename.removesuffix(".npy"): i.file_size for i in archive.infolist()}
        except Exception as error:  # what it raises has no common base
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
        except (Exception, MemoryError) as error:  # of the archive, the header or the numbers
            raise self._damaged(error) from error

    def _damaged(self, error: BaseException) -> UsageError:
        return UsageError(f"{str(self._path)!r} cannot be read as a .npz file ({error}); {self._remedy}.")


def memory() -> int:
    """Counts the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
