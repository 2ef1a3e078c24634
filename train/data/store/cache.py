"""The cache: files and folders that are made once, appear under their names only when they are complete, and are made
again where they are no longer as they were written.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from attention.errors import UsageError
from models.files import at_home
from train.data.store import blocks
from train.run.files import FULL


def root(path: str) -> Path:
    """Returns the folder of all caches: the one that `data.cache_dir` names, or the default where that is ''."""
    return at_home(path or os.environ.get("ATTENTION_BENCH_CACHE") or "~/.cache/attention_bench")


def make_once(target: Path, build: Callable[[Path], None]) -> None:
    """Calls `build` to make a file or folder unless it exists, whole; one process makes it while others wait.

    Beside it, `NAME.digest` tells what was written; see `train.data.store.blocks`, which reads it.

    Args:
      target: The file or folder to make.
      build: A function that makes it at a temporary path beside `target`.

    Raises:
      UsageError: the disk is full or cannot be written; nothing is left behind.
    """
    partial, lock = (target.with_name(target.name + end) for end in (".partial", ".lock"))
    written = blocks.description(target)
    try:
        if blocks.is_whole(target):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            if blocks.is_whole(target):
                return
            if written.exists():
                print(f"{target} is damaged, so it is made again.", file=sys.stderr)
            _remove(target)
            _remove(partial)  # left by a process that was killed
            try:
                build(partial)
                _flush(partial)
                written.write_text(blocks.describe(partial))
                _flush(written)
                os.replace(partial, target)
            finally:
                _remove(partial)
    except OSError as error:
        advice = "free some space there, or" if error.errno in FULL else "mend that, or"
        raise UsageError(
            f"Cannot cache in {target.parent} ({error.strerror or error}): {advice} set data.cache_dir or "
            "ATTENTION_BENCH_CACHE to another folder; nothing half-written was left."
        ) from error


def _flush(path: Path) -> None:
    """Writes a file, or all files of a folder, to the disk itself."""
    for file in blocks.files(path):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
