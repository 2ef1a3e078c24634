"""Evaluation: every example of a split counts once, without dropout; and the best step that a run has validated."""

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np

from train.devices import processes
from train.devices.replicas import Replicas
from train.run import digest, files, results
from train.run.checkpoints import Checkpoints
from train.run.progress import Clock, averages, is_new
from train.run.recorder import Recorder
from train.setup import Setup
from train.state import Params, TrainState
from train.step import NonFiniteError
from train.tasks.task import Task


class Evaluator:
    """Measures splits of a task, each time with the same compiled step.

    Args:
      task: The task, with its data and its loss.
      replicas: The replicas that are measured, and the mesh that holds them.
    """

    def __init__(self, task: Task, replicas: Replicas):
        self._task, self._replicas = task, replicas
        self._step, self._shapes = replicas.eval_step(task), set()

    def __call__(self, split: str, params: Params) -> tuple[list[results.Metrics], float]:
        """Returns each replica's metrics of a split, and how many of the task's units were measured a second.

        Metrics are sums over all batches, divided once. The task may add others, such as scores of the texts that the
        model writes. The time of those scores and of compiling does not count.
        """
        task, replicas, clock = self._task, self._replicas, Clock()
        totals = [Counter[str]() for _ in replicas.seeds]
        with contextlib.closing(task.eval_batches(split, jax.process_index(), jax.process_count())) as batches:
            for batch in batches:
                for total, sums in zip(totals, replicas.split(self._sums(params, batch, clock)), strict=True):
                    total.update({name: float(value) for name, value in sums.items()})
        units = task.eval_examples(split) * task.units_per_example * len(replicas)
        metrics = [
            task.metrics(split, averages(total)) | task.measured(split, trained, replicas.mesh)
            for total, trained in zip(totals, replicas.unstack(params), strict=True)
        ]
        return metrics, units / clock.seconds

    def _sums(self, params: Params, batch: dict[str, Any], clock: Clock) -> Any:
        placed = self._replicas.to_devices(batch, stacked=False)
        clock.lap(0)
        if is_new(batch, self._shapes):
            self._step.lower(params, placed).compile()  # kept for the call below
            clock.skip()
        sums = jax.device_get(self._step(params, placed))
        clock.lap(0)
        return sums


class Evaluations:
    """A run's evaluations: of validation data when it is time, and of test data at the last and at the best step.

    A loss that is not finite is refused. Of equally good steps, the last is the best.

    Args:
      directory: The work directory, whose record has all validations.
      setup: The setup of the run.
      recorder: Writes the metrics.
      checkpoints: The checkpoints, which have the best step's parameters.
      progress: The progress in the restored checkpoint; empty for a new run.
    """

    def __init__(
        self, directory: Path, setup: Setup, recorder: Recorder, checkpoints: Checkpoints, progress: dict[str, Any]
    ):
        self._directory, self._task, self._replicas = directory, setup.task, setup.replicas
        self._timetable, self._recorder, self._checkpoints = setup.timetable, recorder, checkpoints
        self._evaluator = Evaluator(setup.task, setup.replicas)
        self._best = progress.get("best", [{"step": 0, "value": -np.inf}] * len(setup.replicas))
        self._patience, self._waited = setup.config.train.patience, progress.get("waited", 0)

    @property
    def best(self) -> list[int]:
        """The best step of each replica."""
        return [best["step"] for best in self._best]

    @property
    def exhausted(self) -> bool:
        """Whether as many validations as `train.patience` have passed without a better value."""
        return 0 < self._patience <= self._waited

    def progress(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: the best step of each replica with its value, the greater the better."""
        return {"best": self._best, "waited": self._waited}

    def validate(self, step: int, state: TrainState) -> bool:
        """Measures validation data where it is time; returns whether any replica has a new best step."""
        if not self._timetable.evaluates(step):
            return False
        before = self._best
        now = [{"step": step, "value": self.value(metrics)} for metrics in self._write("validation", step, state)]
        self._best = [new if new["value"] >= old["value"] else old for old, new in zip(before, now, strict=True)]
        better = any(new["value"] > old["value"] for old, new in zip(before, now, strict=True))
        self._waited = 0 if better else self._waited + 1
        return self._best != before

    def catch_up(self, step: int, state: TrainState) -> None:
        """Measures validation data at the last step if that is still to do, as after `train.length` was lowered."""
        if step == self._timetable.total and not any(line["step"] == step for line in self._validated()):
            self.validate(step, state)

    def test(self, step: int, state: TrainState) -> list[tuple[int, results.Metrics, results.Metrics]]:
        """Returns of each replica its best step, and its test metrics at the last step and at the best step."""
        last = self._write("test", step, state)
        params = self._best_params(step, state)
        best = last if params is None else self._measure("test", step, params)[0]
        return list(zip(self.best, last, best, strict=True))

    def value(self, metrics: results.Metrics) -> float:
        """Returns the metric that decides, negated where the lowest is best, so that a greater value is better."""
        return metrics[self._task.best] if self._task.best_is_highest else -metrics[self._task.best]

    def _write(self, split: str, step: int, state: TrainState) -> list[results.Metrics]:
        metrics, speed = self._measure(split, step, state.averaged())
        self._recorder.write(split, step, metrics, speed)
        return metrics

    def _measure(self, split: str, step: int, params: Params) -> tuple[list[results.Metrics], float]:
        metrics, speed = self._evaluator(split, params)
        for replica, numbers in enumerate(metrics):
            if not np.isfinite(numbers["loss"]):
                raise NonFiniteError(
                    f"The loss{self._replicas.name(replica)} on {split} data was {numbers['loss']} after step {step}; "
                    f"{self._checkpoints.last_good()}. In another --workdir, try a lower optimizer.learning_rate."
                )
        return metrics, speed

    def _validated(self) -> results.Lines:
        """Returns the record's lines of validation data, in all processes."""
        record = files.read_record(self._directory) if processes.is_first() else []  # only it is sure to see all lines
        return json.loads(processes.of_first(json.dumps([line for line in record if line["split"] == "validation"])))

    def _best_params(self, step: int, state: TrainState) -> Params | None:
        """Returns each replica's parameters at its best step, stacked; None where that is the last step for all.

        Where a best step's checkpoint is damaged, the best of the other steps takes its place.
        """
        params = state.averaged()
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
        loaded, damaged = {step: params}, set()
        while missing := set(self.best) - loaded.keys():
            lost = min(missing)
            try:
                loaded[lost] = self._checkpoints.load_params(lost, abstract, averaged=bool(state.ema))
            except digest.DamagedError as error:
                damaged.add(lost)
                self._replace(lost, {*self._checkpoints.steps(), step} - damaged, error)
        if set(self.best) == {step}:
            return None
        return self._replicas.stack([self._replicas.one(loaded[best], r) for r, best in enumerate(self.best)])

    def _replace(self, lost: int, remaining: set[int], error: digest.DamagedError) -> None:
        """Replaces a lost best step by the best of the steps that are left."""
        lines = [line for line in self._validated() if line["step"] in remaining]
        for replica, best in enumerate(self.best):
            if best == lost:
                values = [
                    {"step": line["step"], "value": self.value(line)} for line in results.of_replica(lines, replica)
                ]
                self._best[replica] = max(values, key=lambda value: (value["value"], value["step"]))
                self._recorder.say(
                    f"{error} It was the best{self._replicas.name(replica)}; the best that is left is step "
                    f"{self.best[replica]}."
                )
