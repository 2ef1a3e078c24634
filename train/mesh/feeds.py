"""Feeds of training batches: made by the host, or gathered by the devices, which then hold all data."""

import contextlib
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from train.data import device, pipeline
from train.data.device import Resident
from train.data.pipeline import Examples
from train.mesh import memory, sharding
from train.mesh.replicas import Replicas
from train.step import Batch

Rows = dict[str, jax.Array]
PART = 1 / 8  # the part of a device's memory that data may take


class HostFeed(contextlib.AbstractContextManager):
    """The batches of all replicas, made by the host, one step a call.

    Attributes:
      name: The feed's name in a run's checkpoints.
      most: The most steps of one call of the compiled program; its arrays have as many rows.
      arrays: The arrays on the devices that all steps share.
      remarks: Lines to print before the first step.
    """

    name, most = "host", 1

    def __init__(self, replicas: Replicas, examples: Examples, reason: str = ""):
        self._replicas, self.arrays = replicas, {}
        self.remarks = [f"Batches are made by the host, since {reason}."] if reason else []
        share = jax.process_index(), jax.process_count()
        streams = [examples.train_batches(seed, *share) for seed in replicas.seeds]
        self._batches = pipeline.stacked(streams) if replicas.front else streams[0]
        self._next = 0  # the step of the stream's next batch

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """Gives the rows of the step `first`, `(1, ...)`, and its examples' indices, `(1, ..., B)`; `count` is 1."""
        if first != self._next:
            self._batches.set_state({"taken": first})
        batch = next(self._batches)
        self._next = first + 1
        one = {name: array[None] for name, array in batch.items()}
        return self._replicas.to_devices(one, stacked=True, steps=True), one["index"]

    def batch(self, arrays: Mapping[str, jax.Array], row: Rows, seed: jax.Array) -> Batch:
        """Makes the batch of one step and one replica; a pure function of arrays."""
        del arrays, seed
        return row

    def __exit__(self, *exception: object) -> None:
        self._batches.close()


class DeviceFeed(contextlib.AbstractContextManager):
    """The same batches, gathered by the devices, each of which holds all examples; many steps a call."""

    name, most, remarks = "devices", 128, ()

    def __init__(self, replicas: Replicas, resident: Resident):
        self._replicas, self._resident = replicas, resident
        self.arrays = placed(resident, replicas.mesh)

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """Gives the rows of the steps from `first` on, `(most, ...)`, and all examples' indices, `(count, ..., B)`."""
        share, seeds = (jax.process_index(), jax.process_count()), self._replicas.seeds
        by_seed = {seed: self._resident.feed(seed, first, count, *share) for seed in seeds}
        rows = by_seed[seeds[0]]
        if self._replicas.front:
            rows = {name: np.stack([by_seed[seed][name] for seed in seeds], 1) for name in rows}
        padded = {name: np.pad(x, [(0, self.most - count)] + [(0, 0)] * (x.ndim - 1)) for name, x in rows.items()}
        return self._replicas.to_devices(padded, stacked=True, steps=True), rows["index"]

    def batch(self, arrays: Mapping[str, jax.Array], row: Rows, seed: jax.Array) -> Batch:
        """Makes the batch of one step and one replica; a pure function of arrays."""
        return self._resident.batch(arrays, row, seed)

    def __exit__(self, *exception: object) -> None:
        self.arrays = {}


Feed = HostFeed | DeviceFeed


def placed(resident: Resident, mesh: Mesh) -> dict[str, jax.Array]:
    """Puts the whole arrays of resident data on every device."""
    whole = NamedSharding(mesh, P())
    return {
        name: jax.make_array_from_process_local_data(whole, array, array.shape)
        for name, array in resident.arrays.items()
    }


def why_host(examples: Examples, mesh: Mesh, training: bool = True) -> str:
    """Says why the host makes a split's batches, in words that follow "because"; '' if the devices can.

    The data may take `PART` of each device's memory.
    """
    if sharding.context(mesh) > 1:
        return "mesh.context splits their tokens"
    if training and examples.data.workers:
        return f"data.workers={examples.data.workers} processes prepare them"
    return device.why_host(examples, int(PART * memory.limit(mesh)), training)


def of(replicas: Replicas, examples: Examples, name: str) -> Feed:
    """Opens the feed of a training; `name` is the feed that the run has used before, or ''."""
    reason = "" if name == DeviceFeed.name else why_host(examples, replicas.mesh)
    if name == HostFeed.name or reason:
        return HostFeed(replicas, examples, reason)
    return DeviceFeed(replicas, Resident(examples))
