"""What the `data` sections of all configs have in common."""

import dataclasses
from typing import ClassVar

from attention.errors import UsageError
from train.data.rows.splits import PARTS, Split


@dataclasses.dataclass(frozen=True)
class Section:
    """Where the data are, how they are split, and in what batches they come.

    Attributes:
      validation_split: What "best" is chosen on.
      test_split: What is measured at the end.
      batch_size: Training examples a step, over all processes.
      eval_batch_size: Examples an evaluation step, over all processes.
    """

    source: str
    data_dir: str
    train_split: str
    validation_split: str
    test_split: str
    batch_size: int
    eval_batch_size: int
    workers: int

    SIZES: ClassVar[tuple[str, ...]] = ("batch_size", "eval_batch_size")  # at least 1

    def __post_init__(self):
        for part in PARTS:
            Split.parse(getattr(self, f"{part}_split"))
        for field in self.SIZES:
            if getattr(self, field) < 1:
                raise UsageError(f"data.{field} must be at least 1, but it is {getattr(self, field)}.")
        if self.workers < 0:
            raise UsageError(f"data.workers must be at least 0 (0 is off), but it is {self.workers}.")
