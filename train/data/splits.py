"""Splits of a source, such as `train`, `train[:90%]` and `test[1000:-500]`, and their classes."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError, unknown

T = TypeVar("T")

PARTS = ("train", "validation", "test")  # of every experiment
ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}
_TENTH = 10  # per cent of `train` that replace a part which a source lacks
_BOUND = r"-?\d+|-?\d+(\.\d+)?%"
_FORM = re.compile(rf"(?P<name>[\w.-]+)(\[(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?\])?")


class MissingSplitError(UsageError):
    """A source lacks a split."""


def named(parts: Mapping[str, T], name: str, where: str, hint: str = "") -> T:
    """Finds a part of a source by its name; raises MissingSplitError if there is none."""
    if name not in parts:
        raise MissingSplitError(f"{unknown(f'split of {where}', name, parts)}{hint}")
    return parts[name]


@dataclasses.dataclass(frozen=True)
class Split:
    """A named part of a data set, or a slice of one.

    `text` is what the user writes. `start` is the first example and `stop` the one after the last: a number or a
    percentage ('90%'), counted from the end if negative; '' is the beginning or the end.
    """

    text: str
    name: str
    start: str = ""
    stop: str = ""

    @classmethod
    def parse(cls, text: str) -> "Split":
        """Reads `name` or `name[start:stop]`; raises UsageError for other texts and percentages beyond 100."""
        match = _FORM.fullmatch(text)
        if not match:
            raise UsageError(
                f"Cannot read the split {text!r}: write a name with an optional slice of numbers or percentages, "
                "such as 'train', 'train[:90%]' or 'train[1000:-500]'."
            )
        split = cls(text, match["name"], match["start"] or "", match["stop"] or "")
        if any(bound.endswith("%") and abs(Fraction(bound[:-1])) > 100 for bound in (split.start, split.stop)):
            raise UsageError(f"The split {text!r} has a percentage beyond 100; use at most 100%.")
        return split

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole part, not a slice."""
        return not (self.start or self.stop)

    def bounds(self, length: int) -> tuple[int, int]:
        """Finds the first example and the one after the last, in a part of `length` examples.

        A boundary is the same example however it is written (`:90%`, `90%:`, `-10%:`), so that adjacent slices neither
        overlap nor leave a gap. Raises UsageError for a slice that is empty or reaches beyond the part.
        """
        start = _position(self.start, length) if self.start else 0
        stop = _position(self.stop, length) if self.stop else length
        if not 0 <= start <= length or not 0 <= stop <= length:
            raise UsageError(f"The split {self.text!r} reaches beyond {self.name!r}, which has {length:,} examples.")
        if start >= stop:
            raise UsageError(
                f"The split {self.text!r} is empty: {self.name!r} has {length:,} examples; widen the slice."
            )
        return start, stop


def _position(bound: str, length: int) -> int:
    if bound.endswith("%"):
        percent = Fraction(bound[:-1])
        return round(length * (percent + 100 * bound.startswith("-")) / 100)
    return int(bound) + length * bound.startswith("-")


def opened(data: Any, open_part: Callable[[str], T]) -> tuple[dict[str, Split], dict[str, T]]:
    """Opens the parts of a source that a `data` section's splits name; gives the splits and the parts by name.

    `open_part` raises MissingSplitError for a part that the source lacks. If the section asks for plain `train`,
    `validation` and `test`, and one of the latter two is missing, the last tenth of `train` replaces it; if both are,
    the last two tenths do. Nothing is read yet.
    """
    splits = {part: Split.parse(getattr(data, f"{part}_split")) for part in PARTS}
    sources, missing = {}, []
    for part, split in splits.items():
        try:
            if split.name not in sources:
                sources[split.name] = open_part(split.name)
        except MissingSplitError:
            if part == "train" or split.text != part or splits["train"].text != "train":
                raise
            missing.append(part)
    bounds = [100 - _TENTH * left for left in range(len(missing), -1, -1)]
    for part, start, stop in zip(missing, bounds, bounds[1:], strict=False):
        splits[part] = Split.parse(f"train[{start}%:{stop}%]".replace(":100%", ":"))
    if missing:
        splits["train"] = Split.parse(f"train[:{bounds[0]}%]")
    return splits, sources


def remarks(data: Any, splits: Mapping[str, Split]) -> Iterator[str]:
    """Yields a line about splits that differ from what the config's section names."""
    cut = {part: split.text for part, split in splits.items() if split.text != getattr(data, f"{part}_split")}
    if cut:
        missing = " and no ".join(f"{part!r}" for part in cut if part != "train")
        slices = ", ".join(f"{part} is {text}" for part, text in cut.items())
        yield f"Splits: {data.source} has no {missing}, so {slices}"


def shuffled(split: Split, length: int) -> Int64[np.ndarray, " rows"]:
    """Cuts a split from a fixed random order of its part, the same for every version of NumPy.

    Many labelled sets are sorted by class, so that a plain slice would have few classes.
    """
    return np.argsort(np.random.PCG64(0).random_raw(length), kind="stable")[slice(*split.bounds(length))]


def ordered_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts the names of classes, each once, as numbers if all are, else alphabetically."""
    names = dict.fromkeys(names)
    are_numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names)
    return tuple(sorted(names, key=float if are_numbers else None))


def class_numbers(names: Iterable[str], classes: Sequence[str], part: str, field: str) -> tuple[int, ...]:
    """Numbers the class names of a part by their places in training's `classes`; raises UsageError for others."""
    number_of = {name: number for number, name in enumerate(classes)}
    names = list(names)
    if strange := [name for name in names if name not in number_of]:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data lack: "
            f"{', '.join(classes)}; look at {field} and data.{part}_split."
        )
    return tuple(number_of[name] for name in names)
