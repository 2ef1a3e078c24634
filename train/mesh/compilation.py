"""Compiling: sentences for compilers' errors, and programs kept on disk, so that the next start is faster.

JAX stores the programs. This module chooses the folder, removes files that a killed process left incomplete, and bounds
the folder's size. Where a compiler refuses our kernels, `auto` does without them.
"""

import contextlib
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
from jax._src import compilation_cache  # there is no public name for how programs are compressed

from attention import mesh
from attention.errors import UsageError
from train.data.encodings import cache

MOST = 2 * 10**9  # bytes in the folder
WORTH = 0.1  # a program that compiles in fewer seconds is not kept
CHECKED = ".checked"  # a file whose time is that of the last check
ENTRIES = "*-cache"  # JAX's files
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
KERNEL = re.compile(
    r"Mosaic failed|Scoped ?Vmem|space=vmem|mosaic_gpu|ptxas|tpu_custom_call|Pallas \w+ lowering", re.IGNORECASE
)
NO_CUDA = re.compile(r"No PTX compilation provider|libdevice not found|\./libdevice\.10\.bc")
MEMORY = re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
TILE = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")


def keep_programs() -> None:
    """Makes JAX keep compiled programs in the cache folder's `compiled`, unless JAX's settings say otherwise.

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
    # If the folder fails later, programs are compiled again, and JAX would warn about each.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", WORTH)


def tidy(folder: Path, most: int = MOST) -> None:
    """Removes programs that were damaged since the last call, and the oldest if the folder is too large.

    JAX ignores a damaged program but never replaces it, so every process would compile it again.
    """
    started, mark = time.time(), folder / CHECKED
    before = mark.stat().st_mtime if mark.exists() else 0.0
    mark.write_text("Programs that are older than this file were whole.")
    os.utime(mark, (started, started))
    sizes: dict[Path, tuple[float, int]] = {}
    for path in folder.glob(ENTRIES):
        with contextlib.suppress(FileNotFoundError):  # another process may tidy too
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
    except Exception:  # each compression library raises errors of its own
        return True
    return False


class TooLarge(UsageError):
    """A program does not fit in the memory of the device that it is compiled for.

    Attributes:
      used: The bytes that it would take.
      limit: The bytes that the device has for it.
      more: Whether its arguments, such as a state, come on top of `used`.
    """

    def __init__(self, used: float, limit: float, more: bool = False):
        self.used, self.limit, self.more = used, limit, more
        super().__init__(f"A step takes {used / 1e9:.1f} GB of a device's {limit / 1e9:.1f} GB; use more devices.")


def explain(error: BaseException) -> None:
    """Raises a UsageError for a known error of a compiler: `TooLarge` if a program does not fit."""
    text = str(error)
    if NO_CUDA.search(text):
        raise UsageError(
            "CUDA's ptxas or libdevice is not found; set CUDA_ROOT to CUDA's folder, such as /usr/local/cuda, and add "
            "its bin to PATH."
        ) from error
    if "lockfile" in text:
        raise UsageError(
            "Another process uses the TPU compiler; wait for it, or set ALLOW_MULTIPLE_LIBTPU_LOAD=true."
        ) from error
    if told := MEMORY.search(text) or TEMPORARIES.search(text):
        used, limit = (float(told[n]) * UNITS[told[n + 1]] for n in (1, 3))
        raise TooLarge(used, limit, more=told.re is TEMPORARIES) from error
    if reason := refused_kernel(error):
        raise UsageError(
            f"The compiler refuses a kernel: {reason}; use model.implementation='chunked' or 'auto'."
        ) from error


def refused_kernel(error: BaseException) -> str:
    """Finds the reason for which a compiler refuses a Pallas kernel; '' if the error is another one."""
    text = str(error)
    if not KERNEL.search(text) or NO_CUDA.search(text):
        return ""
    if tile := TILE.search(text):
        return f"a tile takes {int(tile[1]) / 1e6:.0f} MB of {int(tile[2]) / 1e6:.0f} MB of the chip's vector memory"
    reason = re.sub(
        r"^.*?(Mosaic failed[^:]*: |E\d+: |RESOURCE_EXHAUSTED: )", "", text.strip(), count=1, flags=re.DOTALL
    )
    return re.split(r"\n|(?<=[a-z)])\. ", reason.strip())[0].rstrip(".:; ") or text.splitlines()[0]


def compiled(lower: Callable[[], jax.stages.Lowered]) -> jax.stages.Compiled:
    """Compiles what `lower` traces. If the compiler refuses a kernel that `auto` chose, says so and does without it.

    From then on, the whole process leaves such kernels out. See `explain` for the errors.
    """
    try:
        return lower().compile()
    except Exception as error:
        reason = refused_kernel(error)
        if not reason or mesh.kernels_left_out():
            explain(error)
            raise
    print(f"The compiler refuses a kernel, so XLA computes attention: {reason}.", file=sys.stderr)
    mesh.leave_kernels_out()
    return compiled(lower)
