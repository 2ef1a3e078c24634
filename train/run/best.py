"""The best validated step of each replica, and its replacement where its checkpoint is damaged."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from train.devices import processes
from train.devices.replicas import Replicas
from train.run import results
from train.run.checkpoints import Checkpoints
from train.run.digest import DamagedError
from train.run.recorder import Recorder
from train.run.results import Metrics
from train.run.writers import read_record
from train.state import Params, TrainState
from train.tasks.task import Task


class Best:
    """The best validated step of each replica; of equal steps it is the last.

    Args:
      task: The task, which says which metric decides.
      replicas: The replicas.
      directory: The work directory, whose record has all validations.
      progress: The progress in the restored checkpoint; empty for a new run.
    """

    def __init__(self, task: Task, replicas: Replicas, directory: Path, progress: dict[str, Any]):
        self._task, self._replicas, self._directory = task, replicas, directory
        self._values = progress.get("best", [{"step": 0, "value": -np.inf}] * len(replicas))  # the greater the better

    @property
    def steps(self) -> list[int]:
        """The best step of each replica."""
        return [best["step"] for best in self._values]

    def progress(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of it."""
        return {"best": self._values}

    def update(self, step: int, metrics: Sequence[Metrics]) -> bool:
        """Compares each replica's metrics of a step with its best; returns whether any replica has a new best step."""
        before = self._values
        now = [{"step": step, "value": self.value(numbers)} for numbers in metrics]
        self._values = [new if new["value"] >= old["value"] else old for old, new in zip(before, now, strict=True)]
        return self._values != before

    def value(self, metrics: Metrics) -> float:
        """Returns the metric that decides, negated where the lowest is best, so that a greater value is better."""
        return metrics[self._task.best] if self._task.best_is_highest else -metrics[self._task.best]

    def validated(self) -> results.Lines:
        """Returns the record's lines of validation data, in all processes."""
        record = read_record(self._directory) if processes.is_first() else []  # only it is sure to see all lines
        return json.loads(processes.of_first(json.dumps([line for line in record if line["split"] == "validation"])))

    def params(self, step: int, state: TrainState, checkpoints: Checkpoints, recorder: Recorder) -> Params | None:
        """Returns each replica's parameters at its best step, stacked; None where that is the last step for all.

        Where a best step's checkpoint is damaged, the best of the other steps takes its place.

        Args:
          step: The last step.
          state: The state after the last step.
          checkpoints: The checkpoints of the earlier steps.
          recorder: Prints which checkpoints are damaged.
        """
        params = state.averaged()
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), params)
        loaded, damaged = {step: params}, set()
        while missing := set(self.steps) - loaded.keys():
            lost = min(missing)
            try:
                loaded[lost] = checkpoints.load_params(lost, abstract, averaged=bool(state.ema))
            except DamagedError as error:
                damaged.add(lost)
                self._replace(lost, {*checkpoints.steps(), step} - damaged, recorder, error)
        if set(self.steps) == {step}:
            return None
        return self._replicas.stack([self._replicas.one(loaded[best], r) for r, best in enumerate(self.steps)])

    def _replace(self, lost: int, left: set[int], recorder: Recorder, error: DamagedError) -> None:
        """Replaces a lost best step by the best of the steps that are left."""
        lines = [line for line in self.validated() if line["step"] in left]
        for replica, best in enumerate(self.steps):
            if best == lost:
                values = [
                    {"step": line["step"], "value": self.value(line)} for line in results.of_replica(lines, replica)
                ]
                self._values[replica] = max(values, key=lambda value: (value["value"], value["step"]))
                recorder.say(
                    f"{error} It was the best{self._replicas.name(replica)}; the best that is left is step "
                    f"{self.steps[replica]}."
                )
