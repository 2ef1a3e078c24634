"""Where the batches of a training come from: made by the host, or gathered on the devices, where all data lie."""

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
PART = 1 / 8  # of a device's memory that data may take


class HostFeed(contextlib.AbstractContextManager):
    """The batches of all replicas, made by the host, one step a call.

    Attributes:
      name: What a run's checkpoints call it.
      most: How many steps a call of the compiled program may take; its arrays have so many rows.
      arrays: What all steps share, on the devices.
      remarks: What a run says of them before its first step.
    """

    name, most = "host", 1

    def __init__(self, replicas: Replicas, examples: Examples, reason: str = ""):
        self._replicas, self.arrays = replicas, {}
        self.remarks = [f"Batches are made by the host, since {reason}."] if reason else []
        share = jax.process_index(), jax.process_count()
        streams = [examples.train_batches(seed, *share) for seed in replicas.seeds]
        self._batches = pipeline.stacked(streams) if replicas.front else streams[0]
        self._next = 0  # the step that the stream stands at

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """Gives what the step `first` needs, `(1, ...)`, and its examples' indices, `(1, ..., B)`; `count` is 1."""
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
    """The same, gathered by the devices from all examples, which lie there whole; many steps a call."""

    name, most, remarks = "devices", 128, ()

    def __init__(self, replicas: Replicas, resident: Resident):
        self._replicas, self._resident = replicas, resident
        self.arrays = placed(resident, replicas.mesh)

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """Gives what the steps from `first` on need, `(most, ...)`, and their examples' indices, `(count, ..., B)`."""
        share = jax.process_index(), jax.process_count()
        of_seed = {seed: self._resident.feed(seed, first, count, *share) for seed in self._replicas.seeds}
        feeds = [of_seed[seed] for seed in self._replicas.seeds]
        rows = {n: np.stack([feed[n] for feed in feeds], 1) for n in feeds[0]} if self._replicas.front else feeds[0]
        filled = {n: np.pad(x, [(0, self.most - count)] + [(0, 0)] * (x.ndim - 1)) for n, x in rows.items()}
        return self._replicas.to_devices(filled, stacked=True, steps=True), rows["index"]

    def batch(self, arrays: Mapping[str, jax.Array], row: Rows, seed: jax.Array) -> Batch:
        """Makes the batch of one step and one replica; a pure function of arrays."""
        return self._resident.batch(arrays, row, seed)

    def __exit__(self, *exception: object) -> None:
        self.arrays = {}


Feed = HostFeed | DeviceFeed


def placed(resident: Resident, mesh: Mesh) -> dict[str, jax.Array]:
    """Puts the arrays of resident data on every device whole."""
    whole = NamedSharding(mesh, P())
    return {
        name: jax.make_array_from_process_local_data(whole, array, array.shape)
        for name, array in resident.arrays.items()
    }


def why_host(examples: Examples, mesh: Mesh, training: bool = True) -> str:
    """Says why batches of a split are made by the host, in words that follow "because"; '' where the devices can.

    Their data may take a share of `PART` of each device.
    """
    if sharding.context(mesh) > 1:
        return "mesh.context splits their tokens"
    if training and examples.data.workers:
        return f"data.workers={examples.data.workers} processes prepare them"
    return device.why_host(examples, int(PART * memory.limit(mesh)), training)


def of(replicas: Replicas, examples: Examples, name: str) -> Feed:
    """Opens the batches of a training; `name` is the place that the run has chosen before, or ''."""
    reason = "" if name == DeviceFeed.name else why_host(examples, replicas.mesh)
    if name == HostFeed.name or reason:
        return HostFeed(replicas, examples, reason)
    return DeviceFeed(replicas, Resident(examples))
