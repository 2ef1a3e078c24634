"""The base of the `data` sections of all configs, and the sizes that they state of their data."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from attention.errors import UsageError
from attention.types import Checked, Count, Reader, Sentinel, Unit, at_most
from models.fields import BOOKKEEPING, HARDWARE, field
from train.data.splits import Split

# Of sizes that a config need not state. What a file states of its own data is not true of others: a config file whose
# source or tokeniser is overridden no longer says how many classes or tokens there are.
LEFT = "the data say it; a dry run needs it"
CLASSES = {
    "help": "How many there are, which the data must have.",
    "size_of": ("source", "label_key", "label_column"),
}
Classes = Annotated[Count, Sentinel(0, LEFT)]
Vocabulary = Annotated[
    Count, Sentinel(0, "the tokeniser says it; a dry run needs it, or a tokeniser that names its size"), Unit("tokens")
]
Slices = Annotated[str, Reader(lambda text, _: Split.parse(text))]


@dataclasses.dataclass(frozen=True)
class Batches(Checked):
    """What all data have: a source, and batches."""

    source: str = field("", "Which data.")
    batch_size: Annotated[Count, Unit("examples")] = field(16, "Training examples a step, over all processes.")
    eval_batch_size: Annotated[Count, Unit("examples")] = field(
        16, "Examples an evaluation step, over all processes.", role=HARDWARE
    )
    workers: Annotated[Count, at_most(1000), Sentinel(0, "a thread")] = field(
        0, "Processes that prepare batches.", role=HARDWARE
    )

    PATH: ClassVar[str] = "data."


@dataclasses.dataclass(frozen=True)
class Section(Batches):
    """The place of data that are read, and their splits."""

    data_dir: str = field(
        "", "Where TFDS sets or the hub's downloads are; '' is the libraries' own default.", role=BOOKKEEPING
    )
    train_split: Slices = field("train", "What is learned from.")
    validation_split: Slices = field("validation", 'What "best" is chosen on.')
    test_split: Slices = field("test", "What is measured at the end.")

    COLUMNS: ClassVar[Mapping[str, str]]  # the fields that name the columns of a row, by what these are read as
    revision, streaming = "", False  # no fields of every section


def cache_dir(what: str) -> Any:
    """Declares where something is kept, such as `tokenised text is`."""
    return field(
        "", f"Where {what} kept; '' is ATTENTION_BENCH_CACHE, else ~/.cache/attention_bench.", role=BOOKKEEPING
    )


def check_stated(field: str, stated: int | str, actual: int | str) -> None:
    """Raises UsageError where a size is stated and differs from that of the data."""
    if stated and stated != actual:
        raise UsageError(
            f"data.{field} is {stated}, but the data have {actual}; set --config.data.{field}={actual}, or give the "
            "data that were meant."
        )


def sides(shape: Iterable[int]) -> str:
    """Writes a shape, such as `64x64x3`."""
    return "x".join(map(str, shape))


def needed(field: str, stated: int | str) -> int | str:
    """Refuses a size that is not stated, by a UsageError."""
    if not stated:
        raise UsageError(f"Without data, nothing says what data.{field} is; give --config.data.{field}=...")
    return stated


@dataclasses.dataclass(frozen=True)
class BlankTokeniser:
    """Replaces a tokeniser in a dry run, where only its size is known; ids are 0 … size - 1."""

    size: int

    special: ClassVar[Mapping[str, int]] = {"mask": 0, "start": 1, "end": 2}
