"""What a training state takes of each device's memory, from shapes and shardings alone."""

import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh

from train.state import TrainState

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
LISTED = 3  # of the arrays that are whole on every device


def lines(state: TrainState, mesh: Mesh) -> Iterator[str]:
    """What the header of a run says.

    Args:
      state: `jax.ShapeDtypeStruct`s with their shardings.
      mesh: Where it lies.
    """
    parts = {"parameters": state.params, "optimizer": state.opt_state, "moving average": state.ema}
    sizes = {name: bytes_a_device(part) for name, part in parts.items() if jax.tree.leaves(part)}
    yield "Memory a device: " + ", ".join(f"{name} {bytes_text(size)}" for name, size in sizes.items())
    whole = replicated(state.params)
    if mesh.size > 1 and whole:
        count, largest = len(jax.tree.leaves(state.params)), list(whole.items())[:LISTED]
        listed = ", ".join(f"{path} {bytes_text(size)}" for path, size in largest)
        yield f"Whole on every device: {len(whole)} of {count} parameters, the largest {listed}"


def bytes_a_device(tree: Any) -> int:
    """Bytes of a tree's arrays that lie on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def replicated(tree: Any) -> dict[str, int]:
    """Bytes of the arrays that no axis of the mesh splits, by path, the largest first."""
    flat = jax.tree_util.tree_leaves_with_path(tree)
    found = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x.size * x.dtype.itemsize
        for path, x in flat
        if x.sharding.is_fully_replicated
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def bytes_text(size: int) -> str:
    """`1_234_567` as `1.235 MB`."""
    return scaled(size, "B")


def scaled(number: float, unit: str) -> str:
    """A number of units with four digits and a prefix, of thousands."""
    power = max(0, min((len(str(int(number))) - 1) // 3, len(PREFIXES) - 1))
    return f"{number / 1000**power:.4g} {PREFIXES[power]}{unit}"
