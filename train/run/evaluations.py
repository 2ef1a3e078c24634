"""Evaluation: every example of a split counts once, without dropout, and keeps its own numbers."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from train.devices import refusals
from train.devices.replicas import Replicas
from train.run.progress import Clock, averages
from train.state import Params
from train.step import Batch
from train.tasks.task import Task

EXAMPLES = "test_examples.npz"  # in a work directory
Metrics = dict[str, float]
OfExamples = Mapping[str, np.ndarray]  # the sums of each example, (n,), `weight` and `index` among them


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a replica's evaluation found: metrics of the split, and numbers of each example in order."""

    metrics: Metrics
    examples: OfExamples


class Evaluator:
    """Measures splits of a task, each time with the same compiled step.

    Args:
      task: The task, with its data and its loss.
      replicas: The replicas that are measured, and the mesh that holds them.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self._task, self._replicas = task, replicas
        self._compiled: dict[tuple, jax.stages.Compiled] = {}

    def __call__(self, split: str, params: Params) -> tuple[list[Measured], float]:
        """Measures a split with every replica's parameters.

        Metrics are sums over all examples, divided once. The task may add others, such as scores of the texts that the
        model writes. The time of those scores and of compiling does not count.

        Returns:
          What was measured of each replica, and how many of the task's units were measured a second.
        """
        task, replicas, clock = self._task, self._replicas, Clock()
        parts = []
        with contextlib.closing(task.eval_batches(split, jax.process_index(), jax.process_count())) as batches:
            for batch in batches:
                parts.append(self._sums(params, batch, clock))
                jax.block_until_ready(parts[-2:-1])  # one batch waits on the devices while one is computed
        parts = jax.device_get(parts)
        clock.lap(0)
        units = task.eval_examples(split) * task.units_per_example * len(replicas)
        measured = []
        for trained, *own in zip(replicas.unstack(params), *map(replicas.split, parts), strict=True):
            examples = _in_order({name: np.concatenate([part[name] for part in own]) for name in own[0]})
            metrics = task.metrics(split, averages(_totals(examples)))
            measured.append(Measured(metrics | task.measured(split, trained, replicas.mesh), examples))
        return measured, units / clock.seconds

    def _sums(self, params: Params, batch: dict[str, np.ndarray], clock: Clock) -> Batch:
        """Starts to compute the sums of each example of a batch, and compiles first where that is needed."""
        placed = self._replicas.to_devices(batch, stacked=False)
        shapes = tuple((name, placed[name].shape) for name in sorted(placed))
        if shapes not in self._compiled:
            clock.lap(0)
            self._compiled[shapes] = refusals.compiled(lambda: self._lower(params, placed))
            clock.skip()
        return self._compiled[shapes](params, placed)

    def _lower(self, params: Params, batch: Batch) -> jax.stages.Lowered:
        def measure(params: Params, batch: Batch) -> Batch:
            return self._task.measures(params, batch, None) | {"index": batch["index"]}

        whole = jax.sharding.NamedSharding(self._replicas.mesh, jax.sharding.PartitionSpec())
        return jax.jit(self._replicas.over(measure, True, False), out_shardings=whole).lower(params, batch)


def _in_order(examples: dict[str, np.ndarray]) -> OfExamples:
    """Sorts examples by their index, without those that fill a batch."""
    order = np.argsort(examples["index"], kind="stable")
    order = order[examples["index"][order] >= 0]
    return {name: values[order] for name, values in examples.items()}


def _totals(examples: OfExamples) -> dict[str, float]:
    return {name: float(np.sum(values, dtype=np.float64)) for name, values in examples.items() if name != "index"}


def write_examples(directory: Path, tested: Mapping[str, list[OfExamples]]) -> None:
    """Writes the numbers of each test example: `last/loss (R, n)` and so on, and its `index (n,)`.

    Args:
      directory: The work directory.
      tested: By `last` and `best`, what each of R replicas measured.
    """
    arrays = {"index": next(iter(tested.values()))[0]["index"]}
    for when, replicas in tested.items():
        for name in replicas[0].keys() - {"index"}:
            arrays[f"{when}/{name}"] = np.stack([examples[name] for examples in replicas])
    temporary = directory / f"{EXAMPLES}.tmp"
    with temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    temporary.replace(directory / EXAMPLES)
