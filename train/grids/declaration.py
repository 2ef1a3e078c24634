"""What a sweep declares before it trains: what it asks, what it compares, and how much of a difference matters."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from attention.errors import UsageError, check_known
from attention.types import Names, Number, Positive, Sentinel, build, filled
from models.files import read_json

CLAIMS = ("better", "worse", "equal", "no worse", "as much")
Text = Annotated[str, filled]
Settings = Annotated[Sequence[str], filled]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One of the family."""

    name: str  # in a few words
    settings: Settings  # folders of the sweep, such as `attention=super,heads=4`: one for each block of a main effect
    baselines: Settings  # what each of them is compared with
    claim: Annotated[str, Names(CLAIMS), Sentinel("", "nothing")] = ""  # what is claimed of the settings
    effect: Number = 0.0  # how much is claimed, in the metric's unit; 0 where nobody says


@dataclasses.dataclass(frozen=True)
class Declaration:
    """What is asked, and by which rule it will be answered."""

    question: Text  # in a sentence
    metric: Text  # the primary one, on test data at the step that is best on validation data
    margin: Positive  # a difference that does not matter, in the metric's unit: up to it settings are equal
    family: Annotated[Sequence[Comparison], filled]  # for all of it together the level holds
    detects: Number = 0.0  # the smallest difference found in 80 % of cases, all corrections made; 0 without a spread
    basis: str = ""  # where the spread behind that comes from
    remarks: str = ""  # what else was decided before, such as sizes and lengths

    def check(self, settings: Collection[str]) -> None:
        """Refuses comparisons of settings that the sweep does not have."""
        for comparison in self.family:
            for name in (*comparison.settings, *comparison.baselines):
                check_known(f"setting of the comparison {comparison.name!r}", name, settings)


def read(file: Path) -> Declaration:
    """Reads the declaration in a JSON file; raises a UsageError where something in it is missing, unknown or wrong."""
    return of(read_json(file, "docs/comparing.md says what stands in a declaration"), str(file))


def of(found: Any, place: str) -> Declaration:
    """Makes a declaration of plain values, which messages call by their place."""
    try:
        declared = build(Declaration, found)
        for index, comparison in enumerate(declared.family):
            name = comparison.name
            if len(comparison.settings) != len(comparison.baselines):
                raise UsageError(f"The comparison {name!r} needs as many baselines as settings.")
            if comparison.claim == "as much" and not comparison.effect > 0:
                raise UsageError(f"The comparison {name!r} claims 'as much' of no amount; give it as the effect.")
            for other in declared.family[:index]:
                if name == other.name or comparison == dataclasses.replace(other, name=name):
                    raise UsageError(f"The family has the comparison {other.name!r} twice; declare it once.")
    except UsageError as error:
        raise UsageError(f"{place}: {error} docs/comparing.md says what stands in a declaration.") from error
    return declared
