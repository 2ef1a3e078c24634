"""Sharding: one mesh, and one table of rules for the parameters."""

import math
import re
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from attention.errors import UsageError
from attention.mesh import BATCH, CONTEXT, HEADS, described
from train.config.schema import MeshConfig

AXES = (*BATCH, *HEADS)
EXAMPLES = P(BATCH)  # how a batch is split

# The first pattern that matches a parameter's path gives the mesh axes for its last axes. Earlier axes, such as that of
# stacked copies, stay whole, and so does an array with fewer axes than its rule.
RULES: tuple[tuple[str, P], ...] = (
    # Not over tensor: gradients of a network of two stages were wrong on a 2 x 2 x 2 mesh (jaxlib 0.10.2, CPU).
    (r"conv_\w+/kernel$", P(None, None, None, "fsdp")),
    # From inputs D, or the hidden units of an MLP projection, to N heads of size H; and back. Of low-rank additions, A
    # has the axes of a kernel's inputs, and B those of its outputs.
    (r"(query|key|value|output_gate)/(down/)?kernel$", P("fsdp", "tensor", None)),
    (r"(query|key|value|output_gate)/(down/)?bias$", P("tensor", None)),
    (r"(query|key|value|output_gate)/(down/)?lora_a$", P("fsdp", None)),
    (r"(query|key|value|output_gate)/(down/)?lora_b$", P(None, "tensor", None)),
    (r"out/(up/)?kernel$", P("tensor", None, "fsdp")),
    (r"out/(up/)?lora_a$", P("tensor", None, None)),
    # From D to hidden units, vocabularies and classes; and back.
    (r"(up|gate|head)/kernel$", P("fsdp", "tensor")),
    (r"((up|gate|head)/|head_)bias$", P("tensor")),
    (r"(up|gate|head)/lora_b$", P(None, "tensor")),
    (r"(down/kernel|embed(_target)?/embedding)$", P("tensor", "fsdp")),
    (r"down/lora_a$", P("tensor", None)),
    # Scores: each pair may have a network of its own, and tables are as long as a sequence.
    (r"score/layer_\d+_kernel$", P("fsdp", None, None, None)),
    (r"score/layer_\d+_bias$", P("fsdp", None, None)),
    (r"score/(?!table|rows|columns|lora_)", P()),
    (r"positions\w*/(table|embedding)$", P("fsdp")),
    # Other kernels and tables of two axes, which tensor does not split.
    (r"lora_b$", P(None, "fsdp")),
    (r"(kernel|lora_a|score/\w+)$", P("fsdp", None)),
    (r"", P()),
)


def make_mesh(config: MeshConfig, devices: list[jax.Device] | None = None) -> Mesh:
    """Makes the mesh over all devices; an axis of -1 takes the devices that the others leave.

    The mesh has the axis `context` only if that splits tokens.
    """
    devices = devices or jax.devices()
    axes = AXES if config.context == 1 else (*BATCH, *CONTEXT, *HEADS)
    sizes = {axis: getattr(config, axis) for axis in axes}
    known = math.prod(size for size in sizes.values() if size != -1)
    if len(devices) % known == 0:
        sizes = {axis: len(devices) // known if size == -1 else size for axis, size in sizes.items()}
    if math.prod(sizes.values()) != len(devices):
        requested = ", ".join(f"mesh.{axis}={getattr(config, axis)}" for axis in axes)
        there = f"{len(devices)} devices" if len(devices) > 1 else "one device"
        raise UsageError(f"{requested} does not fit the {there} here; the product must be {len(devices)}.")
    types = (AxisType.Auto,) * len(axes)
    if devices[0].platform == "tpu" and len({getattr(device, "slice_index", 0) for device in devices}) > 1:
        return Mesh(over_slices(devices, tuple(sizes.values())), axes, axis_types=types)
    return jax.make_mesh(tuple(sizes.values()), axes, axis_types=types, devices=devices)


def over_slices(devices: list[jax.Device], shape: tuple[int, ...]) -> np.ndarray:
    """Arranges the chips of several slices in the shape of a mesh; only its first axis crosses slices."""
    slices = len({device.slice_index for device in devices})
    if shape[0] % slices:
        raise UsageError(
            f"mesh.{AXES[0]}={shape[0]} does not divide over {slices} slices; make it a multiple of {slices}."
        )
    within, between = (shape[0] // slices, *shape[1:]), (slices, *(1,) * (len(shape) - 1))
    return mesh_utils.create_hybrid_device_mesh(within, between, devices, allow_split_physical_axes=True)


def divisor(mesh: Mesh, axes: tuple[str, ...]) -> tuple[int, str]:
    """Counts the shards into which these axes split a batch, and names the axes as config fields, for messages."""
    return math.prod(mesh.shape[axis] for axis in axes), " x ".join(f"mesh.{axis}" for axis in axes)


def reads_its_own(mesh: Mesh, axes: tuple[str, ...]) -> bool:
    """Tells whether these axes give each process an equal share of a batch that no other process holds."""
    if described():
        return True
    count, _ = divisor(mesh, axes)
    rows = NamedSharding(mesh, P(axes)).addressable_devices_indices_map((count,))
    return len({index[0].start for index in rows.values()}) * jax.process_count() == count


def check_divisible(sizes: dict[str, int], count: int, axes: str) -> None:
    """Refuses the first config field whose size `count`, the product of `axes`, does not divide."""
    for field, size in sizes.items():
        if size % count:
            raise UsageError(f"{field}={size} does not divide over {axes} = {count}; make it a multiple of {count}.")


def parameter_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """Finds the sharding of one array; axes that the mesh axis does not divide stay whole."""
    spec = next(spec for pattern, spec in RULES if re.search(pattern, path))
    if len(spec) > len(shape):
        return P()
    axes = (*(None,) * (len(shape) - len(spec)), *spec)
    return P(*(axis if axis and size % mesh.shape[axis] == 0 else None for axis, size in zip(axes, shape, strict=True)))


def state_shardings(abstract: Any, mesh: Mesh) -> Any:
    """Finds the shardings of a training state; optimizer moments and averages follow their parameters."""

    def of(path: tuple, leaf: jax.ShapeDtypeStruct) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, parameter_spec(name, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(of, abstract)


def context(mesh: Mesh) -> int:
    """Counts the parts into which the mesh splits the tokens of a sequence."""
    return mesh.shape.get(CONTEXT[0], 1)


def batch_sharding(mesh: Mesh, spec: P, shape: tuple[int, ...]) -> NamedSharding:
    """Finds the sharding of a batch's array: `spec`, and over context too if its last axis is that of tokens."""
    tokens = len(shape) == len(spec) + 1 and shape[-1] % context(mesh) == 0
    return NamedSharding(mesh, P(*spec, CONTEXT) if tokens and context(mesh) > 1 else spec)


def to_devices(batch: dict[str, np.ndarray], mesh: Mesh, spec: P = EXAMPLES) -> dict[str, jax.Array]:
    """Makes global arrays from each process's part of a batch, split by `spec` and over context."""
    return {
        name: jax.make_array_from_process_local_data(batch_sharding(mesh, spec, array.shape), array)
        for name, array in batch.items()
    }
