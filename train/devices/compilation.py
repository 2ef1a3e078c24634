"""Compiled programs kept on disk, so that the next process that needs the same ones starts faster.

JAX does the keeping. This chooses the folder, clears what a killed process left half-written, and bounds the size.
"""

import contextlib
import os
import sys
import time
import warnings
import zlib
from pathlib import Path

import jax

from train.data.store import cache

MOST = 2 * 10**9  # bytes in the folder
WORTH = 0.1  # seconds of compilation from which on a program is kept
CHECKED = ".checked"  # written at the time of the last check
ENTRIES = "*-cache"  # as JAX calls its files
_ZSTD = b"\x28\xb5\x2f\xfd"


def keep_programs() -> None:
    """Has JAX keep compiled programs in `compiled` of the cache folder, unless JAX's own settings say otherwise.

    These are JAX_COMPILATION_CACHE_DIR for another folder, with which all is left to JAX, and
    JAX_ENABLE_COMPILATION_CACHE=false. A folder that cannot be used is said on stderr, and stops nothing.
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
    # Whatever happens to the folder from here on, the program is compiled anew, which JAX would say for each.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)


def tidy(folder: Path, most: int = MOST) -> None:
    """Removes what was damaged since the last time, and of too much the oldest.

    JAX passes a damaged program over, but never replaces it; each would be compiled in every process for ever.

    Raises:
      OSError: the folder cannot be read or written, or the disk is full.
    """
    started, mark = time.time(), folder / CHECKED
    before = mark.stat().st_mtime if mark.exists() else 0.0
    mark.write_text("Programs that are older than this file were whole.")
    os.utime(mark, (started, started))
    sizes: dict[Path, tuple[float, int]] = {}
    for path in folder.glob(ENTRIES):
        with contextlib.suppress(FileNotFoundError):  # another process tidies too
            found = path.stat()
            if found.st_mtime >= before and _damaged(path):
                path.unlink()
            else:
                sizes[path] = (found.st_mtime, found.st_size)
    excess = sum(size for _, size in sizes.values()) - most
    for path, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
        if excess <= 0:
            break
        path.unlink(missing_ok=True)
        excess -= size


def _damaged(path: Path) -> bool:
    """Whether a program cannot be decompressed, with what JAX does it with."""
    data = path.read_bytes()
    decompress = zlib.decompress
    if data.startswith(_ZSTD):
        try:
            import zstandard
        except ImportError:
            return False  # nobody here can tell
        decompress = zstandard.ZstdDecompressor().decompress
    try:
        decompress(data)
    except Exception:  # each library has its own
        return True
    return False
