"""Durations with a unit, such as `90 epochs`, `20steps` or `5000 examples`."""

import dataclasses
import re
from typing import Annotated

from attention.errors import UsageError
from attention.types import Reader, Unit

UNITS = ("steps", "examples", "epochs")
LENGTH = 40  # characters at most, so that the number stays countable
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(step|example|epoch)s?\s*")


@dataclasses.dataclass(frozen=True)
class Duration:
    """A length of training in one of `UNITS`."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str, path: str) -> "Duration":
        """Reads a text; `path` names the config field in errors."""
        match = _PATTERN.fullmatch(text) if isinstance(text, str) and len(text) < LENGTH else None
        if not match:
            raise UsageError(
                f"{path}={text!r} is not a duration: write a number and its unit ({', '.join(UNITS)}), "
                "such as '90 epochs' or '20steps'."
            )
        return cls(float(match[1]), match[2] + "s")

    def steps(self, batch_size: int, examples_per_epoch: int) -> int:
        """Rounds to whole optimizer steps, at least 1 unless the duration is 0."""
        per_unit = {"steps": 1.0, "examples": 1 / batch_size, "epochs": examples_per_epoch / batch_size}
        return max(round(self.amount * per_unit[self.unit]), int(self.amount > 0))


Length = Annotated[str, Unit("/".join(UNITS)), Reader(Duration.parse)]
