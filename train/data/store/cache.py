"""The cache: files and folders that are made once, appear under their names only when they are complete, and are made
again where they are no longer as they were written.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from attention.errors import UsageError


def root(path: str) -> Path:
    """Returns the folder of all caches: the one that `data.cache_dir` names, or the default where that is ''."""
    return Path(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench").expanduser()


def make_once(target: Path, build: Callable[[Path], None]) -> None:
    """Calls `build` to make a file or folder unless it exists, whole; one process makes it while others wait.

    Beside it, `NAME.digest` tells what was written, which every call compares; that takes two seconds for a gigabyte.

    Args:
      target: The file or folder to make.
      build: A function that makes it at a temporary path beside `target`.

    Raises:
      UsageError: the disk is full or cannot be written; nothing is left behind.
    """
    partial, written, lock = (target.with_name(target.name + end) for end in (".partial", ".digest", ".lock"))
    try:
        if _is_whole(target, written):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if _is_whole(target, written):
                return
            if written.exists():
                print(f"{target} is damaged, so it is made again.", file=sys.stderr)
            _remove(target)
            _remove(partial)  # left by a process that was killed
            try:
                build(partial)
                _flush(partial)
                written.write_bytes(_digests(partial))
                _flush(written)
                os.replace(partial, target)
            finally:
                _remove(partial)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space there, or" if full else "mend that, or"
        raise UsageError(
            f"Cannot cache in {target.parent} ({error.strerror or error}): {advice} set data.cache_dir or "
            "ATTENTION_BENCH_CACHE to another folder; nothing half-written was left."
        ) from error


def _is_whole(target: Path, written: Path) -> bool:
    return target.exists() and written.exists() and written.read_bytes() == _digests(target)


def _digests(path: Path) -> bytes:
    """Returns the SHA-256 of a file, or of each file of a folder with its name; files are read in blocks."""
    lines = []
    for file in _files(path):
        with file.open("rb") as opened:
            lines.append(f"{hashlib.file_digest(opened, 'sha256').hexdigest()}  {file.relative_to(path)}\n")
    return "".join(lines).encode()


def _flush(path: Path) -> None:
    """Writes a file, or all files of a folder, to the disk itself."""
    for file in _files(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _files(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else [path]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
