"""What a sweep declares before it trains: its question, its comparisons, and how large a difference matters."""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any

from attention.errors import UsageError, check_known
from attention.types import Names, Number, Positive, Sentinel, build, filled
from models.files import read_json

HELP = "docs/comparing.md says what stands in a declaration"
CLAIMS = ("better", "worse", "equal", "no worse", "as much")
Text = Annotated[str, filled]
Settings = Annotated[Sequence[str], filled]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A comparison of settings with baselines, one of a family."""

    name: str  # in a few words
    settings: Settings  # the sweep's folders, such as `attention=super,heads=4`: one for each block of a main effect
    baselines: Settings  # what each setting is compared with
    claim: Annotated[str, Names(CLAIMS), Sentinel("", "nothing")] = ""  # what is claimed about the settings
    effect: Number = 0.0  # the amount that is claimed, in the metric's unit; 0 where nobody states it


@dataclasses.dataclass(frozen=True)
class Declaration:
    """The question of a sweep, and the rule that will answer it."""

    question: Text  # in a sentence
    metric: Text  # the primary metric, on test data at the step that is best on validation data
    margin: Positive  # the largest difference that does not matter, in the metric's unit
    family: Annotated[Sequence[Comparison], filled]  # the level of confidence holds for all of them together
    detects: Number = 0.0  # the smallest difference found in 80 % of cases after all corrections; 0 where unknown
    basis: str = ""  # the source of the spread behind that number
    remarks: str = ""  # what else was decided before, such as sizes and lengths

    def check(self, settings: Collection[str]) -> None:
        """Raises a UsageError where the sweep lacks a setting that is compared."""
        for comparison in self.family:
            for name in (*comparison.settings, *comparison.baselines):
                check_known(f"setting of the comparison {comparison.name!r}", name, settings)


def read(file: Path) -> Declaration:
    """Reads the declaration in a JSON file; raises a UsageError where something is missing, unknown or wrong."""
    return parse(read_json(file, HELP), str(file))


def parse(plain: Any, place: str) -> Declaration:
    """Makes a declaration from plain values; error messages name their place."""
    try:
        declared = build(Declaration, plain)
        for index, comparison in enumerate(declared.family):
            name = comparison.name
            if len(comparison.settings) != len(comparison.baselines):
                raise UsageError(f"The comparison {name!r} needs as many baselines as settings.")
            if comparison.claim == "as much" and not comparison.effect > 0:
                raise UsageError(f"The comparison {name!r} claims 'as much' but no amount; give it as the effect.")
            for other in declared.family[:index]:
                if name == other.name or comparison == dataclasses.replace(other, name=name):
                    raise UsageError(f"The family has the comparison {other.name!r} twice; declare it once.")
    except UsageError as error:
        raise UsageError(f"{place}: {error} {HELP}.") from error
    return declared
