"""The names of classes, and the numbers that they have."""

import re
from collections.abc import Iterable, Sequence

from attention.errors import UsageError


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts the names of classes, each once, by the alphabet, or as numbers where all are."""
    names = dict.fromkeys(names)
    numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names)
    return tuple(sorted(names, key=float if numbers else None))


def numbers(names: Iterable[str], classes: Sequence[str], part: str, field: str) -> tuple[int, ...]:
    """Finds the number of each name of a part in `classes`, those of training; raises UsageError for others."""
    number_of = {name: number for number, name in enumerate(classes)}
    names = list(names)
    if strange := [name for name in names if name not in number_of]:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(classes)}; look at {field} and data.{part}_split."
        )
    return tuple(number_of[name] for name in names)
