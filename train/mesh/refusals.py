"""What the compilers of TPUs and GPUs refuse, in one sentence; `auto` then does without our kernels."""

import re
import sys
from collections.abc import Callable

import jax

from attention import mesh
from attention.errors import UsageError

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
KERNEL = re.compile(
    r"Mosaic failed|Scoped ?Vmem|space=vmem|mosaic_gpu|ptxas|tpu_custom_call|Pallas \w+ lowering", re.IGNORECASE
)
NO_CUDA = re.compile(r"No PTX compilation provider|libdevice not found|\./libdevice\.10\.bc")
MEMORY = re.compile(r"[Uu]sed ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm")
TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)")
TILE = re.compile(r"Allocation \(size=(\d+)\) would exceed memory \(size=(\d+)\)")


class TooLarge(UsageError):
    """A program does not fit in the memory of the device that it is compiled for.

    Attributes:
      used: The bytes that it would take.
      limit: The bytes that the device has for it.
      more: Whether what it is given, such as a state, comes on top of `used`.
    """

    def __init__(self, used: float, limit: float, more: bool = False):
        self.used, self.limit, self.more = used, limit, more
        super().__init__(f"A step takes {used / 1e9:.1f} GB of a device's {limit / 1e9:.1f} GB; use more devices.")


def explain(error: BaseException) -> None:
    """Raises the sentence for an error of a compiler, if there is one; a `TooLarge` where a program does not fit."""
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
    """Finds the reason why a compiler refuses a Pallas kernel; '' if the error is another one."""
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
    """Compiles what `lower` traces anew; a kernel that `auto` chose and the compiler refuses is left out, saying so.

    Such kernels are left out in the whole process from then on. See `explain` for what it raises.
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
