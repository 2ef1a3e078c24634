"""Progress: the clock, running averages, each replica's life, and texts of numbers and durations."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

DIVERGED, PATIENCE = "diverged", "patience"  # why a replica ended before the others
Numbers = Mapping[str, Any]  # the report of a call, with a number for each step


class Clock:
    """Counts the seconds of training alone: compilation, evaluation and checkpoints do not count.

    Attributes:
      seconds: The run's seconds, restarts included.
      units: The examples or tokens trained in those seconds.
    """

    def __init__(self, saved: Mapping[str, float] | None = None):
        saved = saved or {"seconds": 0.0, "units": 0, "wall": 0.0}
        self.seconds, self.units, self._wall_before = saved["seconds"], saved["units"], saved["wall"]
        self._start_seconds, self._laps, self._last = self.seconds, 0, time.perf_counter()
        self._born = time.monotonic()

    def lap(self, units: int, steps: int = 1) -> None:
        """Adds the time since the last call, in which `steps` steps took `units` examples or tokens."""
        now = time.perf_counter()
        self.seconds += now - self._last
        self.units += units
        self._laps += steps
        self._last = now

    def skip(self) -> None:
        """Leaves out the time since the last lap."""
        self._last = time.perf_counter()

    @property
    def saved(self) -> dict[str, float]:
        """The values that a checkpoint keeps."""
        return {"seconds": self.seconds, "units": self.units, "wall": self.wall}

    @property
    def wall(self) -> float:
        """Seconds that the run's processes have run, including all that `seconds` leaves out."""
        return self._wall_before + time.monotonic() - self._born

    @property
    def per_second(self) -> float:
        """Examples or tokens a second over the whole run, restarts included."""
        return self.units / self.seconds if self.seconds else 0.0

    @property
    def pace(self) -> float:
        """Seconds a step in this process; NaN before the first lap."""
        return (self.seconds - self._start_seconds) / self._laps if self._laps else math.nan


class Averages(Counter):
    """Sums of training metrics on the host since they were last taken; they are divided once."""

    def add(self, numbers: Numbers, count: int) -> None:
        """Adds a report's first `count` steps one by one, so that the sums do not depend on how calls are cut."""
        if not count:
            return
        added = numbers["sums"] | {"gradient_norm": numbers["gradient_norm"]}
        if not added.keys() <= self.keys():  # no sums yet, or those of a version with other metrics
            self.clear()
        for name, values in added.items():
            for value in values[:count].tolist():
                self[name] += value
        self["steps"] += count
        self["learning_rate"] = float(numbers["learning_rate"][count - 1])

    def take(self) -> dict[str, float]:
        """Returns the averages, with the latest learning rate, and starts anew."""
        sums = dict(self)
        self.clear()
        steps, rate = sums.pop("steps"), sums.pop("learning_rate")
        norm = sums.pop("gradient_norm") / steps
        return averages(sums) | {"gradient_norm": norm, "learning_rate": rate}


class Life:
    """One replica's training so far, which a checkpoint keeps as `saved`.

    Attributes:
      averages: The averages since the last line of the record.
      epoch: The averages of the epoch so far.
      best: The best step and its deciding value, the greater the better; of equally good steps, the last.
      waited: The number of validations since the last better value.
      ended: Why and after which step it ended before the run did; {} while it is trained.
    """

    def __init__(self, saved: Mapping[str, Any]):
        self.averages, self.epoch = Averages(saved.get("averages")), Averages(saved.get("epoch"))
        self.best = saved.get("best", {"step": 0, "value": -math.inf})
        self.waited, self.ended = saved.get("waited", 0), saved.get("ended", {})

    @property
    def saved(self) -> dict[str, Any]:
        """A copy of the values that a checkpoint keeps, since training goes on while it is written."""
        return vars(self) | {"averages": dict(self.averages), "epoch": dict(self.epoch)}

    def revive(self, patience: int) -> None:
        """Lets a life that ran out of patience go on if patience is longer now."""
        if self.ended.get("why") == PATIENCE and not 0 < patience <= self.waited:
            self.ended = {}

    def add(self, before: int, count: int, numbers: Numbers, index: np.ndarray) -> list[float]:
        """Counts a call's steps, and returns the plain loss of each; the first that was not taken ends this life.

        Args:
          before: The number of steps before the call.
          count: The number of steps of the call.
          numbers: The call's report, from `Step`, each number `(most,)` or more.
          index: The indices of each step's examples, `(count, B)`.
        """
        taken = numbers["taken"][:count]
        good = count if taken.all() else int(taken.argmin())
        sums = numbers["sums"]
        losses = (sums["loss"][:count] / sums["weight"][:count]).tolist()
        self.averages.add(numbers, good)
        self.epoch.add(numbers, good)
        if good < count:
            self.ended = {
                "why": DIVERGED,
                "step": before + good,
                "loss": str(losses[good]),
                "gradient_norm": str(float(numbers["gradient_norm"][good])),
                "examples": index[good].tolist(),
            }
        return (sums.get("plain_loss", sums["loss"])[:good] / sums["weight"][:good]).tolist()

    def validated(self, step: int, value: float, patience: int) -> bool:
        """Notes a validation's value; tells whether the step is the best so far. Lost patience ends this life."""
        improved = value >= self.best["value"]
        self.waited = 0 if value > self.best["value"] else self.waited + 1
        if improved:
            self.best = {"step": step, "value": value}
        if 0 < patience <= self.waited:
            self.ended = {"why": PATIENCE, "step": step}
        return improved


def averages(sums: dict[str, Any]) -> dict[str, float]:
    """Divides every sum by the sum `weight`.

    The `loss` is that of plain targets, as in validation; with smoothed targets, the minimised loss is called
    `smoothed_loss`.
    """
    weight = float(sums["weight"])
    means = {name: float(value) / weight for name, value in sums.items() if name != "weight"}
    plain = means.pop("plain_loss", None)
    return means if plain is None else means | {"loss": plain, "smoothed_loss": means["loss"]}


def numbers_text(numbers: dict[str, float]) -> str:
    """Formats named numbers for reading."""
    return ", ".join(f"{k} {v:,.0f}" if abs(v) >= 1000 else f"{k} {v:.4g}" for k, v in numbers.items())


def duration_text(seconds: float) -> str:
    """Formats seconds for reading, such as 75.2 as `1m15s`."""
    if not np.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
