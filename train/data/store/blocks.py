"""Blocks of the cache's files, whose digests tell whether a file is as it was written.

Small files are compared when the cache is opened, and the blocks of large ones when they are first read: a start does
not read gigabytes, and nothing is used that is not as it was written.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from attention.errors import UsageError

SIZE = 2**18  # bytes of a block, which take a fifth of a millisecond
AT_ONCE = 2**24  # bytes of the largest file that is compared when it is opened
_DIGEST = 16  # bytes


def description(path: Path) -> Path:
    """Returns the file that tells what was written to a file or folder."""
    return path.with_name(path.name + ".digest")


def describe(path: Path) -> str:
    """Returns a line for a file, or for each file of a folder: its bytes, its name, and the digests of its blocks."""
    return "".join(_line(file, path) for file in files(path))


def is_whole(path: Path) -> bool:
    """Says whether a file or folder is as it was described; of large files, only the size is compared."""
    if not (path.exists() and description(path).exists()):
        return False
    there, lines = files(path), description(path).read_text("utf-8", "replace").splitlines(keepends=True)
    return len(there) == len(lines) and all(
        line.startswith(_head(file, path)) if file.stat().st_size > AT_ONCE else line == _line(file, path)
        for file, line in zip(there, lines, strict=True)
    )


def files(path: Path) -> list[Path]:
    """Returns the files of a folder, or the file itself."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def read(path: Path, name: str = "") -> bytes:
    """Returns the content of a file of the cache, or of the file of that name in a folder; see `CheckedArray`."""
    return mapped(path, name, np.uint8)[:].tobytes()


def mapped(path: Path, name: str, dtype: Any, shape: tuple[int, ...] = (-1,)) -> "CheckedArray":
    """Returns the array in a file of the cache, or in the file of that name in a folder."""
    blocks = _Blocks(path, name)
    return CheckedArray(blocks.content.view(dtype).reshape(shape), blocks)


class CheckedArray:
    """An array that is mapped into memory, whose blocks are compared with their digests when they are first read.

    Args:
      array: All of it, unread.
      blocks: The blocks of its file; None where there is nothing to compare.
      before: The bytes before it in the file.
    """

    def __init__(self, array: Shaped[np.ndarray, "n ..."], blocks: "_Blocks | None" = None, before: int = 0):
        self._array, self._blocks, self._before = array, blocks, before
        self.dtype = array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, rows: int | slice) -> np.ndarray:
        """Returns a row or a slice of rows.

        Raises:
          UsageError: they are not as they were written.
        """
        if self._blocks:
            self._blocks.compare(*self._bytes(*_ends(range(len(self))[rows])))
        return self._array[rows]

    def part(self, start: int, stop: int) -> "CheckedArray":
        """Returns some rows, which are not yet read."""
        return CheckedArray(self._array[start:stop], self._blocks, self._bytes(start, stop)[0])

    def _bytes(self, start: int, stop: int) -> tuple[int, int]:
        """Returns where rows begin and end in the file."""
        row = self._array[:1].nbytes
        return self._before + start * row, self._before + stop * row


def _ends(rows: range | int) -> tuple[int, int]:
    """Returns the first of some rows and the one after the last."""
    chosen = rows if isinstance(rows, range) else [rows]
    return (min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1) if chosen else (0, 0)


class _Blocks:
    """The blocks of a file, mapped into memory as they are.

    Attributes:
      content: All bytes.
    """

    def __init__(self, path: Path, name: str):
        self._path, self._file = path, path / name
        try:
            head = _head(self._file, path)
            lines = description(path).read_text("utf-8", "replace").splitlines()
            [digests] = [line.removeprefix(head) for line in lines if line.startswith(head)]
            # A plain array over the map: slicing np.memmap itself is several times slower.
            self.content = np.asarray(np.memmap(self._file, np.uint8, "r"))
        except (OSError, ValueError) as error:
            raise self._damaged() from error
        self._digests = np.array([digests[at : at + 2 * _DIGEST] for at in range(0, len(digests), 2 * _DIGEST)])
        self._unread = np.ones(len(self._digests), bool)

    def compare(self, start: int, stop: int) -> None:
        """Compares blocks of some bytes that were not compared before; raises UsageError where one is damaged."""
        blocks = slice(start // SIZE, -(-stop // SIZE))
        if self._unread[blocks].any():
            for number in np.flatnonzero(self._unread[blocks]) + blocks.start:
                if _digest(self.content[number * SIZE : (number + 1) * SIZE]) != self._digests[number]:
                    raise self._damaged()
                self._unread[number] = False

    def _damaged(self) -> UsageError:
        """Returns the error, once the file's description is removed, without which it is made again."""
        try:
            description(self._path).unlink(missing_ok=True)
            remedy = "run the same command again, which makes it again"
        except OSError as error:
            remedy = f"remove {self._path}, which cannot be done from here ({error.strerror})"
        return UsageError(f"{self._file} in the cache is damaged; {remedy}.")


def _line(file: Path, path: Path) -> str:
    with file.open("rb") as opened:
        return f"{_head(file, path)}{''.join(map(_digest, iter(lambda: opened.read(SIZE), b'')))}\n"


def _head(file: Path, path: Path) -> str:
    return f"{file.stat().st_size} {file.relative_to(path)} "


def _digest(block: Any) -> str:
    return hashlib.sha256(block).hexdigest()[: 2 * _DIGEST]
