"""The memory that a training state takes on each device, computed from shapes and shardings alone."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from attention.errors import UsageError
from models.files import memory as machine
from train.state import TrainState

PREFIXES = ("", "k", "M", "G", "T", "P", "E")
MEMINFO, COMPILING = Path("/proc/meminfo"), 3 * 10**9  # the most bytes that compiling for 256 chips has taken
LISTED = 3  # the number of unsplit arrays that a line names


def check(state: Any, batch: int, sizes: Mapping[str, int], mesh: Mesh) -> None:
    """Refuses a state and the largest batch, in bytes, that alone do not fit on a device.

    The message names the config's fields that decide the `sizes`.
    """
    available = limit(mesh)
    needed = {"parameters and optimizer": bytes_a_device(state), "a batch": -(-batch // mesh.size)}
    if sum(needed.values()) > available:
        listed = " and ".join(f"{scaled(size, 'B')} for {what}" for what, size in needed.items())
        given = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(
            f"This run would take at least {scaled(sum(needed.values()), 'B')} on each device, {listed}, but a device "
            f"has {scaled(available, 'B')}; make the model smaller, lower {given}, or use more devices."
        )


def limit(mesh: Mesh) -> int:
    """Gives the bytes of each device's memory; CPU devices share the machine's."""
    local = mesh.local_devices
    return (local[0].memory_stats() or {}).get("bytes_limit") or machine() // len(local)


def check_compiling() -> None:
    """Refuses to compile for a described device if this machine has too little free memory."""
    try:
        free = int(re.search(r"MemAvailable:\s+(\d+) kB", MEMINFO.read_text())[1]) * 1024
    except (OSError, TypeError):  # not on Linux: the compiler finds out
        return
    if free < COMPILING:
        raise UsageError(
            f"Compiling takes about {scaled(COMPILING, 'B')} of this machine's memory, and {scaled(free, 'B')} are "
            "free; close other programs, or compile on a larger machine."
        )


def lines(state: TrainState, mesh: Mesh) -> Iterator[str]:
    """Yields the lines about memory in a run's header; `state` may be shapes with shardings."""
    yield "Memory a device: " + ", ".join(f"{name} {scaled(size, 'B')}" for name, size in parts(state).items())
    whole = replicated(state.params)
    if mesh.size > 1 and whole:
        count, largest = len(jax.tree.leaves(state.params)), list(whole.items())[:LISTED]
        listed = ", ".join(f"{path} {scaled(size, 'B')}" for path, size in largest)
        yield f"Whole on every device: {len(whole)} of {count} parameters, the largest {listed}"


def parts(state: TrainState) -> dict[str, int]:
    """Counts the bytes of a state's parts on one device."""
    trees = {"parameters": state.params, "optimizer": state.opt_state, "moving average": state.ema}
    return {name: bytes_a_device(part) for name, part in trees.items() if jax.tree.leaves(part)}


def bytes_a_device(tree: Any) -> int:
    """Counts the bytes of a tree's arrays on one device."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def replicated(tree: Any) -> dict[str, int]:
    """Counts the bytes of each array that the mesh does not split, by path, the largest first."""
    sizes = {
        jax.tree_util.keystr(path, simple=True, separator="/"): x.size * x.dtype.itemsize
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if x.sharding.is_fully_replicated
    }
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def scaled(number: float, unit: str) -> str:
    """Formats a number of units with four digits and a prefix for powers of a thousand."""
    power = max(0, min((len(str(int(number))) - 1) // 3, len(PREFIXES) - 1))
    return f"{number / 1000**power:.4g} {PREFIXES[power]}{unit}"
