"""Measuring a split: every example once, without dropout."""

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
      task: Has the data and the loss.
      replicas: Whose parameters are measured, and where they lie.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self._task, self._replicas = task, replicas
        self._step, self._shapes = replicas.eval_step(task), Shapes()

    def __call__(self, split: str, params: Params) -> tuple[list[dict[str, float]], float]:
        """A split's metrics of each replica, and how many of the task's units a second were measured.

        Metrics are sums of all batches, divided once, and what else the task measures, such as scores of what it
        writes, whose time does not count; nor does that of compiling.
        """
        task, replicas, clock = self._task, self._replicas, Clock()
        totals: list[dict[str, float]] = [{} for _ in replicas.seeds]
        with contextlib.closing(task.eval_batches(split, jax.process_index(), jax.process_count())) as batches:
            for batch in batches:
                for total, own in zip(totals, replicas.split(self._sums(params, batch, clock)), strict=True):
                    total |= {name: total.get(name, 0.0) + float(value) for name, value in own.items()}
        units = task.eval_examples(split) * task.units_per_example * len(replicas)
        metrics = [
            task.metrics(split, averages(total)) | task.measured(split, own, replicas.mesh)
            for total, own in zip(totals, replicas.each(params), strict=True)
        ]
        return metrics, units / clock.seconds

    def _sums(self, params: Params, batch: dict[str, Any], clock: Clock) -> Any:
        ours = self._replicas.to_devices(batch, own=False)
        clock.lap(0)
        if self._shapes.are_new(batch):
            self._step.lower(params, ours).compile()  # kept for the call below
            clock.skip()
        sums = jax.device_get(self._step(params, ours))
        clock.lap(0)
        return sums
