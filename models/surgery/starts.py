"""The ways in which exchanged layers start, as spec strings name them."""

import dataclasses
import functools

from attention import specs
from attention.types import Checked, Count, Positive


@dataclasses.dataclass(frozen=True)
class Fresh:
    """What is new has the initial values of any model."""


@dataclasses.dataclass(frozen=True)
class Like:
    """What is new starts so that the layer computes what it did, where that is possible; see `models.surgery.like`."""


@dataclasses.dataclass(frozen=True)
class Distilled(Checked):
    """After that, the layers learn what the layers before them give out on the training data.

    Attributes:
      steps: How many batches they see.
      learning_rate: Adam's, which falls to 0 as a cosine.
    """

    steps: Count = 300
    learning_rate: Positive = 1e-3


STARTS: dict[str, type] = {"fresh": Fresh, "like": Like, "distilled": Distilled}


@functools.cache
def parse(text: str, field: str = "train.exchanged") -> Fresh | Like | Distilled:
    """Reads the start that a spec string names, such as `distilled(steps=100)`; raises UsageError if it is none."""
    return specs.make(text, STARTS, f"start in {field}")
