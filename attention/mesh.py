"""The devices that are compiled for: platform, compute capability, the mesh in force, and the names of its axes."""

import contextlib
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jaxlib
from jax._src import xla_bridge  # there is no public name for whether a backend is in use
from jax.sharding import AxisType, PartitionSpec

# Axes of the mesh that split the batch, the tokens of each sequence, and the heads.
BATCH, CONTEXT, HEADS = ("data", "fsdp"), ("context",), ("tensor",)
REPLICAS = "replicas"  # axis of `jax.vmap` over models that are trained together
FUSIONS = "--xla_cpu_experimental_ynn_fusion_type"
RIGHT = "individual_dot"  # the kind of fusion that was not seen to be wrong
WRONG = (0, 10, 2), (0, 11, 2)  # the first and the last jaxlib that were seen to compute wrong numbers


_TARGET: ContextVar[Any] = ContextVar("target", default=None)
_PLAIN: ContextVar[bool] = ContextVar("plain", default=False)


@contextlib.contextmanager
def compiled_for(device: Any) -> Iterator[None]:
    """Chooses kernels and tiles for a device that this machine need not have, such as one of a described topology."""
    token = _TARGET.set(device)
    try:
        yield
    finally:
        _TARGET.reset(token)


def described() -> bool:
    """Tells whether compilation is for described devices."""
    return _TARGET.get() is not None


def platform() -> str:
    """Names the platform that is compiled for: `cpu`, `gpu` or `tpu`."""
    device = _TARGET.get()
    if device is None:
        return jax.default_backend()
    return "gpu" if device.platform in ("cuda", "rocm") else device.platform


def compute_capability() -> tuple[int, ...]:
    """Gives the compute capability of the first NVIDIA GPU, such as (9, 0) for Hopper, or () without a GPU."""
    if platform() != "gpu":
        return ()
    device = _TARGET.get() or jax.devices()[0]
    text = str(getattr(device, "compute_capability", ""))  # on AMD GPUs a name, such as gfx90a
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+\.\d+", text) else ()


def leave_kernels_out() -> None:
    """Makes `auto` do without Pallas kernels from here on, because the compiler has refused one."""
    _PLAIN.set(True)


def kernels_left_out() -> bool:
    """Tells whether `auto` does without Pallas kernels."""
    return _PLAIN.get()


def free_axes(*names: str) -> tuple[str, ...]:
    """Names the given axes, or all axes, that the mesh has and that `shard_map` does not split manually."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind != AxisType.Manual and (not names or name in names))


def devices(*names: str) -> int:
    """Counts the devices over which the given free axes, or all of them, split arrays."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in free_axes(*names))


def kernel_platform(on_gpu: bool) -> str:
    """Names the platform whose kernels serve the device that is compiled for: `tpu`, `gpu` if they support it, else ''.

    On a CPU it is `interpret`.
    """
    kinds = {"cpu": "interpret", "tpu": "tpu", "gpu": "gpu" if on_gpu else ""}
    return kinds.get(platform(), "")


def on_each_device(function: Callable, arrays: Any, specs: Any, out: PartitionSpec) -> Any:
    """Calls a function of arrays on each device's part of them, because JAX cannot partition a kernel."""
    if devices() == 1:
        return function(*arrays)
    names = frozenset(free_axes())
    return jax.shard_map(function, in_specs=specs, out_specs=out, axis_names=names, check_vma=False)(*arrays)


def sequences_and_heads(x: jax.Array) -> PartitionSpec:
    """Splits an array `(B, N, ...)` over devices; an axis of 1 is shared."""
    axes = zip((free_axes(*BATCH), free_axes(*HEADS)), x.shape, strict=False)
    return PartitionSpec(*(names if size > 1 else () for names, size in axes))


def as_rows(x: jax.Array) -> jax.Array:
    """Flattens `(*B, L, D)` to a matrix, which XLA on a CPU multiplies faster, except where devices share tokens.

    The sequences and tokens of a device are no consecutive rows, so XLA would gather those of all devices.
    """
    return x if devices(*CONTEXT) > 1 else x.reshape(-1, x.shape[-1])


def in_replicas() -> bool:
    """Tells whether the current trace is for one of several replicas, which `jax.vmap` batches afterwards."""
    try:
        jax.lax.axis_size(REPLICAS)
    except NameError:
        return False
    return True


def leave_out_fusions() -> None:
    """Turns XLA's YNNPACK fusions off, except those of a product of matrices alone.

    On x86, fusions of a product with what is around it, of sums and of elementwise work read memory that was never
    written. In a loop over batches, outputs of gated DeltaNet by chunks were wrong by up to 1e37, others each time
    (also https://github.com/jax-ml/jax/issues/39103). Products alone were never wrong, and without YNNPACK those by a
    transposed matrix, as in every backward pass, take 2 to 20 times as long. A value in XLA_FLAGS is kept. XLA reads
    XLA_FLAGS before the first computation, so a warning says where it is too late.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    version = tuple(int(part) for part in jaxlib.__version__.split(".")[:3] if part.isdigit())
    if FUSIONS in flags or not WRONG[0] <= version <= WRONG[1]:
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FUSIONS}={RIGHT}".strip()
    if xla_bridge.backends_are_initialized() and "cpu" in xla_bridge.backends():
        warnings.warn(
            f"JAX computed something before attention was imported, so jaxlib {jaxlib.__version__} may compute wrong "
            f"numbers on a CPU; import attention first, or set XLA_FLAGS={FUSIONS}={RIGHT}.",
            stacklevel=3,
        )
