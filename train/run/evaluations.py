"""A run's evaluations: of validation data when it is time, and of test data at the last and at the best step."""

import numpy as np

from train.config.timetable import Timetable
from train.devices.replicas import Replicas
from train.measure import Evaluator
from train.run.best import Best
from train.run.checkpoints import Checkpoints
from train.run.recorder import Recorder
from train.run.results import Metrics
from train.state import Params, TrainState
from train.step import NonFiniteLossError
from train.tasks.task import Task


class Evaluations:
    """Measures splits of a run's data, refuses a loss that is not finite, and writes the metrics.

    Args:
      task: The task, with its data.
      replicas: The replicas that are measured.
      timetable: Says when validation data are measured.
      recorder: Writes the metrics.
      checkpoints: The checkpoints, which have the best step's parameters.
      best: The best steps so far.
    """

    def __init__(
        self,
        task: Task,
        replicas: Replicas,
        timetable: Timetable,
        recorder: Recorder,
        checkpoints: Checkpoints,
        best: Best,
    ):
        self._evaluator, self._replicas, self._timetable = Evaluator(task, replicas), replicas, timetable
        self._recorder, self._checkpoints, self._best = recorder, checkpoints, best

    def validate(self, step: int, state: TrainState) -> bool:
        """Measures validation data where it is time; returns whether any replica has a new best step."""
        return self._timetable.evaluates(step) and self._validate(step, state)

    def catch_up(self, step: int, state: TrainState) -> None:
        """Measures validation data at the last step if that is still to do, as after `train.length` was lowered."""
        if step == self._timetable.total and not any(line["step"] == step for line in self._best.validated()):
            self._validate(step, state)

    def test(self, step: int, state: TrainState) -> list[tuple[Metrics, Metrics]]:
        """Returns each replica's test metrics at the last step, which are also written, and at its best step."""
        last, speed = self._measure("test", step, state.averaged())
        self._recorder.write("test", step, last, speed)
        params = self._best.params(step, state, self._checkpoints, self._recorder)
        best = last if params is None else self._measure("test", step, params)[0]
        return list(zip(last, best, strict=True))

    def _validate(self, step: int, state: TrainState) -> bool:
        metrics, speed = self._measure("validation", step, state.averaged())
        self._recorder.write("validation", step, metrics, speed)
        return self._best.update(step, metrics)

    def _measure(self, split: str, step: int, params: Params) -> tuple[list[Metrics], float]:
        metrics, speed = self._evaluator(split, params)
        for replica, numbers in enumerate(metrics):
            if not np.isfinite(numbers["loss"]):
                raise NonFiniteLossError(
                    f"The loss{self._replicas.name(replica)} on {split} data was {numbers['loss']} after step {step}; "
                    f"{NonFiniteLossError.SIGN} {self._checkpoints.last()}. Try a lower "
                    "optimizer.learning_rate."
                )
        return metrics, speed
