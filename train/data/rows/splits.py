"""Splits of every source, such as `train`, `train[:90%]` and `test[1000:-500]`."""

import dataclasses
import re
from fractions import Fraction

from attention.errors import UsageError

PARTS = ("train", "validation", "test")  # of every experiment's data
_BOUND = r"-?\d+|-?\d+(\.\d+)?%"
_FORM = re.compile(rf"(?P<name>[\w.-]+)(\[(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?\])?")


@dataclasses.dataclass(frozen=True)
class Split:
    """A named part of a data set, or a slice of one.

    Attributes:
      text: The split as the user writes it.
      name: The part that is sliced, such as `train`.
      start: The first example: a number or a percentage ('90%'), from the end if negative; '' is the beginning.
      stop: The example after the last, written likewise; '' is the end.
    """

    text: str
    name: str
    start: str = ""
    stop: str = ""

    @classmethod
    def parse(cls, text: str) -> "Split":
        """Reads `name` or `name[start:stop]`.

        Raises:
          UsageError: the text is anything else, or a percentage is beyond 100.
        """
        match = _FORM.fullmatch(text)
        if not match:
            raise UsageError(
                f"Cannot read the split {text!r}: write a name with an optional slice of numbers or per cents, "
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
        """Returns the first example and the one after the last, in a part of `length` examples.

        The same boundary is the same example however it is written (`:90%`, `90%:`, `-10%:`), so that slices that
        meet neither overlap nor leave anything out.

        Raises:
          UsageError: the slice is empty or reaches beyond the part.
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
