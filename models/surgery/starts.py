"""How exchanged layers start, by the names in spec strings."""

import dataclasses
import functools

from attention import specs
from attention.types import Checked, Count, Positive


@dataclasses.dataclass(frozen=True)
class Fresh:
    """New parameters have the initial values of any model."""


@dataclasses.dataclass(frozen=True)
class Like:
    """New parameters let the layer compute what it did before, where that is possible; see `models.surgery.like`."""


@dataclasses.dataclass(frozen=True)
class Distilled(Checked):
    """After `Like`, exchanged layers learn the outputs of the layers that they replace, on the training data.

    Attributes:
      steps: Number of batches.
      learning_rate: Adam's learning rate, which falls to 0 as a cosine.
    """

    steps: Count = 300
    learning_rate: Positive = 1e-3


STARTS: dict[str, type] = {"fresh": Fresh, "like": Like, "distilled": Distilled}


@functools.cache
def parse(text: str, field: str = "train.exchanged") -> Fresh | Like | Distilled:
    """Reads the start that a spec string names, such as `distilled(steps=100)`; raises UsageError if it names none."""
    return specs.make(text, STARTS, f"start in {field}")
