"""Compiled programs kept on disk, so that the next process that needs the same ones starts faster.

JAX stores them. This module chooses the folder, removes files that a killed process left incomplete, and bounds the
folder's size.
"""

import contextlib
import os
import sys
import time
import warnings
from pathlib import Path

import jax
from jax._src import compilation_cache  # what tells how programs are compressed has no public name

from train.data.encodings import cache

MOST = 2 * 10**9  # bytes in the folder
WORTH = 0.1  # seconds of compilation above which a program is kept
CHECKED = ".checked"  # written at the time of the last check
ENTRIES = "*-cache"  # as JAX calls its files


def keep_programs() -> None:
    """Makes JAX keep compiled programs in `compiled` of the cache folder, unless JAX's settings say otherwise.

    JAX_COMPILATION_CACHE_DIR names another folder and leaves everything to JAX; JAX_ENABLE_COMPILATION_CACHE=false
    turns the cache off. If the folder cannot be used, a line on stderr says so, and the program goes on.
    """
    if not jax.config.jax_enable_compilation_cache or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = cache.root("") / "compiled"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
    except OSError as error:
        print(
            f"Compiled programs cannot be kept in {folder} ({error.strerror}); starting takes longer.", file=sys.stderr
        )
        return
    # If the folder fails later, programs are compiled anew, and JAX would warn of each.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)


def tidy(folder: Path, most: int = MOST) -> None:
    """Removes programs that were damaged since the last call, and the oldest where the folder is too large.

    JAX ignores a damaged program but never replaces it, so every process would compile it again.
    """
    started, mark = time.time(), folder / CHECKED
    before = mark.stat().st_mtime if mark.exists() else 0.0
    mark.write_text("Programs that are older than this file were whole.")
    os.utime(mark, (started, started))
    sizes: dict[Path, tuple[float, int]] = {}
    for path in folder.glob(ENTRIES):
        with contextlib.suppress(FileNotFoundError):  # another process tidies too
            status = path.stat()
            if status.st_mtime >= before and _damaged(path):
                path.unlink()
            else:
                sizes[path] = (status.st_mtime, status.st_size)
    excess = sum(size for _, size in sizes.values()) - most
    for path, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


def _damaged(path: Path) -> bool:
    """Tells whether JAX cannot decompress a program."""
    try:
        compilation_cache.decompress_executable(path.read_bytes())
    except Exception:  # each library that it may use raises errors of its own
        return True
    return False
