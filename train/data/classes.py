"""The names of classes, and the numbers that they have."""

import re
from collections.abc import Iterable, Sequence

from attention.errors import UsageError, listed


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts the names of classes, each once, by the alphabet, or as numbers where all of them are numbers."""
    names = dict.fromkeys(names)
    numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names)
    return tuple(sorted(names, key=float if numbers else None))


def numbers(names: Iterable[str], classes: Sequence[str], part: str, field: str) -> tuple[int, ...]:
    """Finds the number of each name in `classes`, the names of the training data.

    Args:
      names: The names of the classes of a part of the data.
      classes: All names in order.
      part: Such as `validation`, for the message.
      field: The config field that names the column of the class, for the message.

    Raises:
      UsageError: the training data have no such class.
    """
    number_of = {name: number for number, name in enumerate(classes)}
    names = list(names)
    if strange := [name for name in names if name not in number_of]:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(classes)}; look at {field} and data.{part}_split."
        )
    return tuple(number_of[name] for name in names)


def remark(names: Sequence[str]) -> str:
    """Writes a line that names the classes, the first of them where there are many."""
    return f"Classes: {listed(names, 10)}"
