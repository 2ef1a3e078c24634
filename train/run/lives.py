"""What a run knows of each of its replicas: running averages, the best step, and whether it has ended."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from train.run.progress import Averages

DIVERGED, PATIENCE = "diverged", "patience"  # why a replica ended before the others
Numbers = Mapping[str, Any]


class Life:
    """One replica's training so far.

    Args:
      saved: What a checkpoint has of it; {} for a new one.

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

    def revive(self, patience: int) -> None:
        """Lets a life go on whose patience had ended, and is longer now."""
        if self.ended.get("why") == PATIENCE and not 0 < patience <= self.waited:
            self.ended = {}

    @property
    def saved(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON values."""
        return {
            "averages": self.averages.saved,
            "epoch": self.epoch.saved,
            "best": self.best,
            "waited": self.waited,
            "ended": self.ended,
        }

    def add(self, before: int, count: int, numbers: Numbers, index: np.ndarray) -> list[float]:
        """Counts the steps of a call; the first that was not taken ends this life.

        Args:
          before: The steps before the call.
          count: The steps of the call.
          numbers: The report of the call, from `Step`, each number `(most,)` or more.
          index: The indices of each step's examples, `(count, B)`.

        Returns:
          The loss of each step that was taken.
        """
        taken = numbers["taken"][:count]
        good = count if taken.all() else int(taken.argmin())
        losses = (numbers["sums"]["loss"][:count] / numbers["sums"]["weight"][:count]).tolist()
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
        return losses[:good]

    def validated(self, step: int, value: float, patience: int) -> bool:
        """Takes a validation's value; tells whether the step is the best so far. Patience may end this life."""
        improved = value >= self.best["value"]
        self.waited = 0 if value > self.best["value"] else self.waited + 1
        if improved:
            self.best = {"step": step, "value": value}
        if 0 < patience <= self.waited:
            self.ended = {"why": PATIENCE, "step": step}
        return improved
