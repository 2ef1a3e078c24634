"""The record of a run: lines of metrics in files, and their means on the screen."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from train.config.timetable import Timetable
from train.devices import processes
from train.devices.replicas import Replicas
from train.run import results
from train.run.progress import Clock, Display
from train.run.results import Metrics
from train.run.writers import Writers
from train.tasks.task import Task


class Recorder:
    """Writes a run's metrics to its files and to the screen, and counts its time.

    Args:
      directory: The work directory.
      task: The task, which says what throughput counts.
      replicas: The replicas that are measured.
      step: How many steps were taken before.
      timetable: Says how many steps there will be.
      progress: The progress in the restored checkpoint; empty for a new run.

    Attributes:
      clock: The clock of the training.
      rate: The name of the throughput in the record.
    """

    def __init__(
        self, directory: Path, task: Task, replicas: Replicas, step: int, timetable: Timetable, progress: dict[str, Any]
    ):
        self.clock = Clock(progress.get("clock"))
        self.rate = f"{task.unit}_per_second"
        self._replicas, self._total = replicas, timetable.total
        size = progress.get("record_size", 0)
        self._writers = Writers(directory, step=step, size=size, active=processes.is_first())
        self._display = Display(self._total, step, task.unit)

    def write(self, split: str, step: int, metrics: Sequence[Metrics], speed: float, shown: bool = True) -> None:
        """Writes a line for each replica: metrics, seconds of training and throughput.

        Args:
          split: The split that was measured.
          step: The step after which it was measured.
          metrics: The metrics of each replica.
          speed: The throughput in examples or tokens a second.
          shown: Whether the screen shows the mean too.
        """
        timing = {"seconds": self.clock.seconds, self.rate: speed}
        for replica, numbers in enumerate(metrics):
            self._writers.write({"step": step, "split": split} | self._replicas.label(replica) | numbers | timing)
        if shown:
            line = {"step": step, "split": split + self._replicas.mean_of} | results.mean(metrics) | timing
            self._display.metrics(line, self._total)

    def say(self, *lines: str) -> None:
        """Prints lines."""
        for line in lines:
            self._display.say(line)

    def advance(self, step: int, loss: float) -> None:
        """Shows how far the run is."""
        self._display.advance(step, loss, self.clock)

    def progress(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps: the clock, and how many bytes of the record are on disk."""
        return {"clock": self.clock.saved, "record_size": self._writers.sync()}

    def close(self) -> None:
        """Closes the bar and the files."""
        self._display.close()
        self._writers.close()
