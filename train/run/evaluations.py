"""Evaluation, without dropout: every example of a split counts once and keeps its own numbers."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from train.data.device import Resident
from train.mesh import compilation, feeds
from train.mesh.replicas import Replicas
from train.run.progress import Clock, averages
from train.state import Params
from train.step import Batch
from train.tasks.task import Task

EXAMPLES = "test_examples.npz"  # a file of the work directory
Metrics = dict[str, float]
OfExamples = Mapping[str, np.ndarray]  # each example's sums `(n,)`, with `weight` and `index`


class Measured(NamedTuple):
    """A replica's evaluation: the metrics of the split, and the numbers of each example, in order."""

    metrics: Metrics
    examples: OfExamples


class Evaluator:
    """Measures a task's splits, each time with the same compiled programs.

    If a split's data fit on the devices, they stay there, and one call measures them all.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self._task, self._replicas = task, replicas
        self._compiled: dict[tuple, jax.stages.Compiled] = {}
        self._held: dict[str, tuple[Resident, Batch, Batch]] = {}  # a split's data, and rows of all batches

    def __call__(self, split: str, params: Params) -> tuple[list[Measured], float]:
        """Measures a split with every replica's parameters; returns the speed too, in the task's units a second.

        Metrics are sums over all examples, divided once. The task may add others, such as scores of texts that the
        model writes. The speed leaves out the time of these and of compiling.
        """
        task, replicas, clock = self._task, self._replicas, Clock()
        on_devices = split in self._held or not feeds.why_host(task.sources[split], replicas.mesh, training=False)
        parts = (self._in_one_call if on_devices else self._in_batches)(split, params, clock)
        units = task.eval_examples(split) * task.units_per_example * len(replicas)
        measured = []
        for trained, examples in zip(replicas.unstack(params), map(_in_order, replicas.split(parts)), strict=True):
            sums = {name: float(np.sum(x, dtype=np.float64)) for name, x in examples.items() if name != "index"}
            metrics = task.metrics(split, averages(sums))
            measured.append(Measured(metrics | task.measured(split, trained, replicas.mesh), examples))
        return measured, units / clock.seconds

    def _in_one_call(self, split: str, params: Params, clock: Clock) -> dict[str, np.ndarray]:
        """Measures each example of a split that is kept on the devices, `(..., n)`."""
        if split not in self._held:
            resident = Resident(self._task.sources[split], training=False)
            rows = resident.feed(jax.process_index(), jax.process_count())
            rows = self._replicas.to_devices(rows, stacked=False, steps=True)
            self._held[split] = resident, feeds.placed(resident, self._replicas.mesh), rows
            clock.skip()
        resident, arrays, rows = self._held[split]

        def measure(params: Params, arrays: Batch, rows: Batch) -> Batch:
            batches = jax.lax.map(lambda row: self._measures(params, resident.batch(arrays, row)), rows)
            return jax.tree.map(jnp.ravel, batches)

        found = jax.device_get(self._call(clock, split, measure, params, arrays, rows))
        clock.lap(0)
        return found

    def _in_batches(self, split: str, params: Params, clock: Clock) -> dict[str, np.ndarray]:
        """Measures each example of a split in batches that the host makes, `(..., n)`."""
        parts: list[Batch] = []
        with contextlib.closing(self._task.eval_batches(split, jax.process_index(), jax.process_count())) as batches:
            for batch in batches:
                placed = self._replicas.to_devices(batch, stacked=False)
                parts.append(self._call(clock, "", self._measures, params, placed))
                jax.block_until_ready(parts[-2:-1])  # so that at most one more batch waits on the devices
        parts = jax.device_get(parts)
        clock.lap(0)
        return {name: np.concatenate([part[name] for part in parts], axis=-1) for name in parts[0]}

    def _measures(self, params: Params, batch: Batch) -> Batch:
        return self._task.measures(params, batch, None) | {"index": batch["index"]}

    def _call(self, clock: Clock, name: str, function: Callable[..., Batch], params: Params, *shared: Batch) -> Batch:
        """Starts to compute a function of every replica's parameters; compiles it first if needed."""
        shapes = (name, *((key, x.shape) for tree in shared for key, x in sorted(tree.items())))
        if shapes not in self._compiled:
            clock.lap(0)
            whole = NamedSharding(self._replicas.mesh, PartitionSpec())

            def lower() -> jax.stages.Lowered:
                over = self._replicas.over(function, True, *(False for _ in shared))
                return jax.jit(over, out_shardings=whole).lower(params, *shared)

            self._compiled[shapes] = compilation.compiled(lower)
            clock.skip()
        return self._compiled[shapes](params, *shared)


def _in_order(examples: dict[str, np.ndarray]) -> OfExamples:
    """Sorts examples by their index, without those that pad a batch."""
    order = np.argsort(examples["index"], kind="stable")
    order = order[examples["index"][order] >= 0]
    return {name: values[order] for name, values in examples.items()}


def write_examples(directory: Path, tested: Mapping[str, list[OfExamples]]) -> None:
    """Writes R replicas' numbers of each test example at the `last` and `best` step: `last/loss (R, n)` and so on."""
    arrays = {"index": next(iter(tested.values()))[0]["index"]}
    for when, replicas in tested.items():
        for name in replicas[0].keys() - {"index"}:
            arrays[f"{when}/{name}"] = np.stack([examples[name] for examples in replicas])
    temporary = directory / f"{EXAMPLES}.tmp"
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    temporary.replace(directory / EXAMPLES)
