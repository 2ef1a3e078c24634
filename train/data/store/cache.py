"""The cache: files and folders that are made once and appear under their names only when they are complete."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from attention.errors import UsageError


def root(path: str) -> Path:
    """Returns the folder of all caches: the one that `data.cache_dir` names, or the default where that is ''."""
    return Path(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench").expanduser()


def make_once(target: Path, build: Callable[[Path], None]) -> None:
    """Calls `build` to make a file or folder unless it exists; one process makes it while others wait.

    Args:
      target: The file or folder to make.
      build: A function that makes it at a temporary path beside `target`.

    Raises:
      UsageError: the disk is full or cannot be written; nothing is left behind.
    """
    if target.exists():
        return
    partial = target.with_name(target.name + ".partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(target.with_name(target.name + ".lock"), "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.exists():
                _remove(partial)  # left by a process that was killed
                try:
                    build(partial)
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


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
