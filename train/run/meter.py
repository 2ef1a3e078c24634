"""The metrics of training steps, which are read one step late, so that devices do not wait for the host."""

import json
from typing import Any, NoReturn

import jax
import numpy as np

from train.devices import processes
from train.run.checkpoints import Checkpoints
from train.run.progress import Averages, is_new
from train.run.recorder import Recorder
from train.setup import Setup
from train.step import NonFiniteError


class Meter:
    """Reads the reports of training steps, refuses losses that are not finite, averages the rest and counts the time.

    Args:
      setup: The setup of the run.
      recorder: Writes the averages.
      checkpoints: The checkpoints, the last of which an error names.
      progress: The progress in the restored checkpoint; empty for a new run.
    """

    def __init__(self, setup: Setup, recorder: Recorder, checkpoints: Checkpoints, progress: dict[str, Any]):
        self._task, self._replicas, self._timetable = setup.task, setup.replicas, setup.timetable
        self._recorder, self._checkpoints = recorder, checkpoints
        new = [None] * len(setup.replicas)
        self._averages, self._epoch = (
            [Averages(sums) for sums in progress.get(name, new)] for name in ("averages", "epoch")
        )
        self._shapes, self._compiles = set[tuple](), False
        self._pending: tuple[int, dict[str, Any], np.ndarray, bool] | None = None

    def expect(self, batch: dict[str, np.ndarray]) -> None:
        """Takes a step's batch. If the step will compile, reads the step before first, to keep the two times apart."""
        self._compiles = is_new(batch, self._shapes)
        if self._compiles:
            self.read()
            self._recorder.compiling()

    def add(self, step: int, report: dict[str, Any], index: np.ndarray) -> None:
        """Reads the step before, and keeps the report of this one, which is still being computed.

        Args:
          step: The number of the step.
          report: Its report from `Trainer.train_step`.
          index: The indices of the examples in its batch.
        """
        self.read()
        self._pending = step, report, index, self._compiles

    def read(self) -> None:
        """Reads the report that was kept.

        Raises:
          NonFiniteError: the loss or gradient norm was not finite.
        """
        pending, self._pending = self._pending, None
        if pending:
            self._read(*pending)

    def log(self, step: int) -> None:
        """Reads the last step, and writes the averages since the last line where it is time."""
        self.read()
        if self._timetable.logs(step):
            self._recorder.write("train", step, self._take(self._averages), self._recorder.clock.per_second)

    def log_rest(self, step: int) -> None:
        """Writes the averages since the last line where it is not time: the run ends here."""
        if not self._timetable.logs(step):
            self._recorder.write("train", step, self._take(self._averages), self._recorder.clock.per_second)

    def progress(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: the sums of each replica."""
        kept = {"averages": self._averages, "epoch": self._epoch}
        return {name: [averages.saved for averages in replicas] for name, replicas in kept.items()}

    def _read(self, step: int, report: dict[str, Any], index: np.ndarray, compiled: bool) -> None:
        reports = self._replicas.split(jax.device_get(report))
        losses = [float(numbers["sums"]["loss"]) / float(numbers["sums"]["weight"]) for numbers in reports]
        for replica, numbers in enumerate(reports):
            if not (np.isfinite(losses[replica]) and np.isfinite(numbers["gradient_norm"])):
                self._refuse(step, losses[replica], numbers["gradient_norm"], replica, index)
            self._averages[replica].add(numbers)
            self._epoch[replica].add(numbers)
        clock = self._recorder.clock
        if compiled:
            clock.skip()
        else:
            clock.lap(index.size * jax.process_count() * self._task.units_per_example)
        if step % self._timetable.epoch == 0:
            self._end_epoch(step)
        self._recorder.advance(step, float(np.mean(losses)))

    def _end_epoch(self, step: int) -> None:
        """Writes the averages of the epoch, if all of its steps were counted."""
        whole = self._epoch[0].steps == self._timetable.epoch
        metrics = self._take(self._epoch)
        if whole:
            self._recorder.write("epoch", step, metrics, self._recorder.clock.per_second, shown=False)

    def _take(self, averages: list[Averages]) -> list[dict[str, float]]:
        return [self._task.metrics("train", sums.take()) for sums in averages]

    def _refuse(self, step: int, loss: float, norm: float, replica: int, index: np.ndarray) -> NoReturn:
        shares = processes.exchange(json.dumps(self._replicas.split(index)[replica].tolist()))
        raise NonFiniteError(
            f"The loss{self._replicas.name(replica)} was {loss} and the gradient norm {norm} at step {step}, on the "
            f"training examples {[example for share in shares for example in json.loads(share)]}; "
            f"{self._checkpoints.last_good()}. In another --workdir, try a lower optimizer.learning_rate, a longer "
            "optimizer.warmup or optimizer.clip=1.0."
        )
