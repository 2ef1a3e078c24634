"""The device mesh in force, and what its axes, and that of replicas, are called."""

import math

import jax
from jax.sharding import AxisType

BATCH, HEADS = ("data", "fsdp"), ("tensor",)  # axes of the mesh that split these
REPLICAS = "replicas"  # axis of `jax.vmap` over models trained together


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
