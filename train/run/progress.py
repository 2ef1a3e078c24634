"""Progress: the clock, running averages, what is known of each replica, and how it is read."""

import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

DIVERGED, PATIENCE = "diverged", "patience"  # why a replica ended before the others
Numbers = Mapping[str, Any]  # of each step of a call


class Clock:
    """Counts the seconds of training alone: compilation, evaluation and checkpoints do not count.

    Attributes:
      seconds: Those of the run, restarts included.
      units: The examples or tokens of those seconds.
    """

    def __init__(self, saved: Mapping[str, float] | None = None):
        saved = saved or {"seconds": 0.0, "units": 0, "wall": 0.0}
        self.seconds, self.units, self._wall_before = saved["seconds"], saved["units"], saved["wall"]
        self._start_seconds, self._laps, self._last = self.seconds, 0, time.perf_counter()
        self._born = time.monotonic()

    def lap(self, units: int, steps: int = 1) -> None:
        """Adds the time since the last call, in which steps took `units` examples or tokens together."""
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

    @property
    def pace(self) -> float:
        """Seconds a step in this process; NaN before the first lap."""
        return (self.seconds - self._start_seconds) / self._laps if self._laps else math.nan


class Averages(Counter):
    """Training metrics since they were last taken, as sums on the host that are divided once; `dict` copies them."""

    def add(self, numbers: Numbers, count: int) -> None:
        """Adds the first `count` steps of a call's report, one after another, so that calls may be cut anywhere."""
        if not count:
            return
        added = numbers["sums"] | {"gradient_norm": numbers["gradient_norm"]}
        if not added.keys() <= self.keys():  # there are no sums yet, or those of a version with other metrics
            self.clear()
        for name, values in added.items():
            for value in values[:count].tolist():
                self[name] += value
        self["steps"] += count
        self["learning_rate"] = float(numbers["learning_rate"][count - 1])

    def take(self) -> dict[str, float]:
        """Divides, and starts anew; the learning rate is the latest."""
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
      best: Its best step, with the value that decides, the greater the better; of equally good steps, the last.
      waited: How many validations have passed without a better value.
      ended: Why and after which step it ended before the run did; {} while it is trained.
    """

    def __init__(self, saved: Mapping[str, Any]):
        self.averages, self.epoch = Averages(saved.get("averages")), Averages(saved.get("epoch"))
        self.best = saved.get("best", {"step": 0, "value": -math.inf})
        self.waited, self.ended = saved.get("waited", 0), saved.get("ended", {})

    @property
    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps, copied, since it is written while training goes on."""
        return vars(self) | {"averages": dict(self.averages), "epoch": dict(self.epoch)}

    def revive(self, patience: int) -> None:
        """Lets a life go on whose patience had ended, and is longer now."""
        if self.ended.get("why") == PATIENCE and not 0 < patience <= self.waited:
            self.ended = {}

    def add(self, before: int, count: int, numbers: Numbers, index: np.ndarray) -> list[float]:
        """Counts the steps of a call, and gives each one's plain loss; the first that was not taken ends this life.

        Args:
          before: The steps before the call.
          count: The steps of the call.
          numbers: The report of the call, from `Step`, each number `(most,)` or more.
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
        """Takes a validation's value; tells whether the step is the best so far. Patience may end this life."""
        improved = value >= self.best["value"]
        self.waited = 0 if value > self.best["value"] else self.waited + 1
        if improved:
            self.best = {"step": step, "value": value}
        if 0 < patience <= self.waited:
            self.ended = {"why": PATIENCE, "step": step}
        return improved


def averages(sums: dict[str, Any]) -> dict[str, float]:
    """Divides every sum by the sum `weight`.

    The `loss` is that of plain targets, as validation has it; what is minimised instead, if it is another, is called
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
