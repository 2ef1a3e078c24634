"""The devices: what the first can do, the mesh in force, and the names of its axes."""

import math
import re

import jax
from jax.sharding import AxisType

BATCH, HEADS = ("data", "fsdp"), ("tensor",)  # axes of the mesh that split these
REPLICAS = "replicas"  # axis of `jax.vmap` over models trained together


def compute_capability() -> tuple[int, ...]:
    """The compute capability of the first NVIDIA GPU, such as (9, 0) for Hopper; empty where there is none."""
    if jax.default_backend() != "gpu":
        return ()
    text = str(getattr(jax.devices()[0], "compute_capability", ""))  # AMD's are names, such as gfx90a
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+\.\d+", text) else ()


def free_axes(*names: str) -> tuple[str, ...]:
    """Those of the named axes, or of all, that the mesh has and that are not split by hand already (`shard_map`)."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in kinds if kind != AxisType.Manual and (not names or name in names))


def devices(*names: str) -> int:
    """How many devices those axes split arrays over."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in free_axes(*names))


def in_replicas() -> bool:
    """Whether this is traced for one of several replicas, over which `jax.vmap` batches it afterwards."""
    try:
        jax.lax.axis_size(REPLICAS)
    except NameError:
        return False
    return True
