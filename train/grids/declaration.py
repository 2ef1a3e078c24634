"""What a sweep declares before it trains: what it asks, what it compares, and how much of a difference matters."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from attention.errors import UsageError, check_known
from attention.types import Names, Number, Positive, Sentinel, build, filled
from models.files import read_json

CLAIMS = ("better", "worse", "equal")
Text = Annotated[str, filled]
Settings = Annotated[Sequence[str], filled]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One of the family.

    Attributes:
      name: In a few words.
      settings: Folders of the sweep, such as `attention=super,heads=4`: one for each block of a main effect.
      baselines: What each of them is compared with.
      claim: What is claimed of the settings: `better`, `worse` or `equal`; '' is nothing.
      effect: How much is claimed, in the metric's unit; 0 where nobody says.
    """

    name: str
    settings: Settings
    baselines: Settings
    claim: Annotated[str, Names(CLAIMS), Sentinel("", "nothing")] = ""
    effect: Number = 0.0


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What is asked, and by which rule it will be answered.

    Attributes:
      question: In a sentence.
      metric: The primary one, on test data at the step that is best on validation data.
      margin: A difference that does not matter, in the metric's unit: up to it settings are equal.
      family: The comparisons, for all of which together the level holds.
      detects: The smallest difference of two settings that is found in 80 % of cases, all corrections made; 0 where no
        spread is known yet.
      basis: Where the spread behind that comes from.
      remarks: What else was decided before, such as sizes and lengths.
    """

    question: Text
    metric: Text
    margin: Positive
    family: Annotated[Sequence[Comparison], filled]
    detects: Number = 0.0
    basis: str = ""
    remarks: str = ""

    def check(self, settings: Collection[str]) -> None:
        """Raises a UsageError where a comparison is of settings that the sweep does not have."""
        for comparison in self.family:
            for name in (*comparison.settings, *comparison.baselines):
                check_known(f"setting of the comparison {comparison.name!r}", name, settings)


def read(file: Path) -> Declaration:
    """Reads the declaration in a JSON file; raises a UsageError where something in it is missing, unknown or wrong."""
    return of(read_json(file, "docs/comparing.md says what stands in a declaration"), str(file))


def of(found: Any, place: str) -> Declaration:
    """Makes a declaration of plain values; raises a UsageError, which names the place, as `read` does."""
    try:
        declared = build(Declaration, found)
        for index, comparison in enumerate(declared.family):
            _check(comparison, declared.family[:index])
    except UsageError as error:
        raise UsageError(f"{place}: {error} docs/comparing.md says what stands in a declaration.") from error
    return declared


def _check(comparison: Comparison, before: Sequence[Comparison]) -> None:
    if len(comparison.settings) != len(comparison.baselines):
        raise UsageError(f"The comparison {comparison.name!r} needs as many baselines as settings.")
    for other in before:
        if comparison.name == other.name or comparison == dataclasses.replace(other, name=comparison.name):
            raise UsageError(f"The family has the comparison {other.name!r} twice; declare it once.")
