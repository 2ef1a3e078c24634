"""Progress: the clock, running averages, and how both are read."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np


class Clock:
    """Counts the seconds of training alone: compilation, evaluation and checkpoints do not count.

    `lap` after each step adds the time since the last call; `skip` leaves that time out.
    """

    def __init__(self, saved: dict[str, float] | None = None):
        saved = saved or {"seconds": 0.0, "units": 0, "wall": 0.0}
        self.seconds, self.units, self._wall_before = saved["seconds"], saved["units"], saved["wall"]
        self._start_seconds, self._laps, self._last = self.seconds, 0, time.perf_counter()
        self._born = time.monotonic()

    def lap(self, units: int, steps: int = 1) -> None:
        """Counts steps of `units` examples or tokens together."""
        now = time.perf_counter()
        self.seconds += now - self._last
        self.units += units
        self._laps += steps
        self._last = now

    def skip(self) -> None:
        """Leaves out the time since the last lap, which was not training."""
        self._last = time.perf_counter()

    @property
    def saved(self) -> dict[str, float]:
        """The values that a checkpoint keeps."""
        return {"seconds": self.seconds, "units": self.units, "wall": self.wall}

    @property
    def wall(self) -> float:
        """Seconds that the run's processes have run, with all that `seconds` leaves out."""
        return self._wall_before + time.monotonic() - self._born

    @property
    def per_second(self) -> float:
        """Examples or tokens a second, over the whole run, restarts included."""
        return self.units / self.seconds if self.seconds else 0.0

    def seconds_of(self, units: int) -> float:
        """Returns the seconds that `units` examples or tokens take at the whole run's pace; 0 before the first lap."""
        return units * self.seconds / max(self.units, 1)

    @property
    def pace(self) -> float:
        """Seconds a step in this process; NaN before the first lap."""
        return (self.seconds - self._start_seconds) / self._laps if self._laps else math.nan


class Averages:
    """Averages of training metrics since they were last taken, as sums on the host that are divided once."""

    def __init__(self, saved: Mapping[str, float] | None = None):
        self._sums = Counter[str](saved)

    def add(self, numbers: Mapping[str, Any], count: int) -> None:
        """Adds the first `count` steps of a call's report, one after another, so that calls may be cut anywhere."""
        if not count:
            return
        added = numbers["sums"] | {"gradient_norm": numbers["gradient_norm"]}
        if not added.keys() <= self._sums.keys():  # there are no sums yet, or those of a version with other metrics
            self._sums.clear()
        for name, values in added.items():
            for value in values[:count].tolist():
                self._sums[name] += value
        self._sums["steps"] += count
        self._sums["learning_rate"] = float(numbers["learning_rate"][count - 1])

    def clear(self) -> None:
        """Starts anew."""
        self._sums.clear()

    @property
    def steps(self) -> int:
        """How many steps were added."""
        return round(self._sums["steps"])

    @property
    def saved(self) -> dict[str, float]:
        """A copy for a checkpoint, which is written while training goes on."""
        return dict(self._sums)

    def take(self) -> dict[str, float]:
        """Returns the averages and starts anew; the learning rate is the latest."""
        sums, self._sums = self._sums, Counter()
        steps, rate = sums.pop("steps"), sums.pop("learning_rate")
        norm = sums.pop("gradient_norm") / steps
        return averages(sums) | {"gradient_norm": norm, "learning_rate": rate}


def averages(sums: dict[str, Any]) -> dict[str, float]:
    """Divides every sum by the sum `weight`."""
    weight = float(sums["weight"])
    return {name: float(value) / weight for name, value in sums.items() if name != "weight"}


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
