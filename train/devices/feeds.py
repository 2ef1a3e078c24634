"""Where the batches of a training come from: made by the host, or gathered on the devices, where all data lie."""

import contextlib
from collections.abc import Mapping
from typing import ClassVar

import jax
import numpy as np

from train.data import pipeline
from train.devices.replicas import Replicas
from train.step import Batch
from train.tasks.task import Task

Rows = dict[str, jax.Array]


class Feed(contextlib.AbstractContextManager):
    """The batches of all replicas, from a position on.

    Attributes:
      name: What a run's checkpoints call it.
      most: How many steps a call of the compiled program may take; its arrays have so many rows.
      arrays: What all steps share, on the devices.
    """

    name: ClassVar[str]
    most: ClassVar[int]
    arrays: Mapping[str, jax.Array]

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """Gives what the steps from `first` on need, `(most, ...)`, and their examples' indices, `(count, ..., B)`."""

    def batch(self, arrays: Mapping[str, jax.Array], row: Rows, seed: jax.Array) -> Batch:
        """Makes the batch of one step and one replica; a pure function of arrays."""


class HostFeed(Feed):
    """Batches that the host makes, one step a call."""

    name, most = "host", 1

    def __init__(self, replicas: Replicas, task: Task):
        self._replicas, self.arrays = replicas, {}
        share = jax.process_index(), jax.process_count()
        streams = [task.sources["train"].train_batches(seed, *share) for seed in replicas.seeds]
        self._batches = pipeline.stacked(streams) if replicas.front else streams[0]
        self._next = 0  # the step that the stream stands at

    def take(self, first: int, count: int) -> tuple[Rows, np.ndarray]:
        """See `Feed`; `count` is 1."""
        if first != self._next:
            self._batches.set_state({"taken": first})
        batch = next(self._batches)
        self._next = first + 1
        one = {name: array[None] for name, array in batch.items()}
        return self._replicas.to_devices(one, stacked=True, steps=True), one["index"]

    def batch(self, arrays: Mapping[str, jax.Array], row: Rows, seed: jax.Array) -> Batch:
        """See `Feed`."""
        del arrays, seed
        return row

    def __exit__(self, *exception: object) -> None:
        self._batches.close()


def of(replicas: Replicas, task: Task, name: str) -> Feed:
    """Opens the batches of a training; `name` is the place that a run has chosen before, or ''."""
    del name
    return HostFeed(replicas, task)
