"""The evaluation of a split: every example counts once, without dropout."""

import contextlib
from typing import Any

import jax

from train.devices.replicas import Replicas
from train.run.progress import Clock, Shapes, averages
from train.state import Params
from train.tasks.task import Task


class Evaluator:
    """Measures splits of a task, each time with the same compiled step.

    Args:
      task: The task, with its data and its loss.
      replicas: The replicas that are measured, and the mesh that holds them.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self._task, self._replicas = task, replicas
        self._step, self._shapes = replicas.eval_step(task), Shapes()

    def __call__(self, split: str, params: Params) -> tuple[list[dict[str, float]], float]:
        """Returns each replica's metrics of a split, and how many of the task's units were measured a second.

        Metrics are sums over all batches, divided once. The task may add others, such as scores of the texts that the
        model writes. The time of those scores and of compiling does not count.
        """
        task, replicas, clock = self._task, self._replicas, Clock()
        totals: list[dict[str, float]] = [{} for _ in replicas.seeds]
        with contextlib.closing(task.eval_batches(split, jax.process_index(), jax.process_count())) as batches:
            for batch in batches:
                for total, sums in zip(totals, replicas.split(self._sums(params, batch, clock)), strict=True):
                    total |= {name: total.get(name, 0.0) + float(value) for name, value in sums.items()}
        units = task.eval_examples(split) * task.units_per_example * len(replicas)
        metrics = [
            task.metrics(split, averages(total)) | task.measured(split, trained, replicas.mesh)
            for total, trained in zip(totals, replicas.unstack(params), strict=True)
        ]
        return metrics, units / clock.seconds

    def _sums(self, params: Params, batch: dict[str, Any], clock: Clock) -> Any:
        placed = self._replicas.to_devices(batch, stacked=False)
        clock.lap(0)
        if self._shapes.are_new(batch):
            self._step.lower(params, placed).compile()  # kept for the call below
            clock.skip()
        sums = jax.device_get(self._step(params, placed))
        clock.lap(0)
        return sums
