"""What a sweep declares before it trains: what it asks, what it compares, and how much of a difference matters."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, check_known, unknown
from models.files import read_json

CLAIMS = ("better", "worse", "equal", "")


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
    settings: Sequence[str]
    baselines: Sequence[str]
    claim: str = ""
    effect: float = 0.0


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

    question: str
    metric: str
    margin: float
    family: Sequence[Comparison]
    detects: float = 0.0
    basis: str = ""
    remarks: str = ""

    def check(self, settings: Collection[str]) -> None:
        """Raises a UsageError where a comparison is of settings that the sweep does not have."""
        for comparison in self.family:
            for name in (*comparison.settings, *comparison.baselines):
                check_known(f"setting of the comparison {comparison.name!r}", name, settings)


def read(file: Path) -> Declaration:
    """The declaration of a JSON file.

    Raises:
      UsageError: there is none, or something in it is missing, unknown or wrong.
    """
    return of(read_json(file, "docs/comparing.md says what stands in a declaration"), str(file))


def of(found: Any, place: str) -> Declaration:
    """The declaration that plain values stand for; raises a UsageError, which names the place, as `read` does."""
    family = found.get("family") if isinstance(found, Mapping) else None
    if not isinstance(family, list) or not family:
        raise UsageError(f"{place}: family must be a list of at least one comparison.")
    comparisons = [_build(Comparison, item, f"{place}: a comparison of the family") for item in family]
    made = _build(Declaration, {**found, "family": comparisons}, place)
    for name in ("question", "metric"):
        if not getattr(made, name):
            raise UsageError(f"{place}: {name} must not be empty; a declaration says what is asked and measured.")
    if not 0 < made.margin < math.inf:
        raise UsageError(f"{place}: margin must be a number above 0, but it is {made.margin!r}.")
    for comparison in comparisons:
        where = f"{place}: the comparison {comparison.name!r}"
        if comparison.claim not in CLAIMS:
            raise unknown(f"claim of {where}", comparison.claim, CLAIMS[:-1])
        if not comparison.settings or len(comparison.settings) != len(comparison.baselines):
            raise UsageError(f"{where} needs as many baselines as settings, and at least one.")
    return made


def _build(kind: type, found: Any, place: str) -> Any:
    """A dataclass of plain values, each of the type of its field."""
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if not isinstance(found, Mapping):
        raise UsageError(f"{place} must be an object with {', '.join(fields)}, not {found!r}.")
    for name, value in found.items():
        check_known(f"field of {place}", name, fields)
        wanted = {str: str, float: int | float}.get(fields[name].type, list)
        if not isinstance(value, wanted) or isinstance(value, bool):
            raise UsageError(f"{place}: {name} cannot be {value!r}.")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in found]
    if missing:
        raise UsageError(f"{place} lacks {', '.join(missing)}; docs/comparing.md says what stands in it.")
    return kind(**found)
