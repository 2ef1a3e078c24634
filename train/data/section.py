"""The base of the `data` sections of all configs."""

import dataclasses
from typing import Any, ClassVar

from models.fields import BOOKKEEPING, HARDWARE, Declared, field
from train.data.rows.splits import Split


def _split(default: str, help: str) -> Any:
    return field(default, help, reads=lambda text, _: Split.parse(text))


@dataclasses.dataclass(frozen=True)
class Section(Declared):
    """The place of the data, their splits and their batches."""

    source: str = field("", "Which data.")
    data_dir: str = field("", "Where they are.", role=BOOKKEEPING)
    train_split: str = _split("train", "What is learned from.")
    validation_split: str = _split("validation", 'What "best" is chosen on.')
    test_split: str = _split("test", "What is measured at the end.")
    batch_size: int = field(16, "Training examples a step, over all processes.", least=1, unit="examples")
    eval_batch_size: int = field(
        16, "Examples an evaluation step, over all processes.", least=1, unit="examples", role=HARDWARE
    )
    workers: int = field(0, "Processes that prepare batches.", least=1, special={0: "a thread"}, role=HARDWARE)

    PATH: ClassVar[str] = "data."
