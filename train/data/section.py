"""The base of every config's `data` section, and the sizes that it states of its data."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from attention.errors import UsageError
from attention.types import Checked, Count, Reader, Sentinel, Unit, at_most
from models.fields import BOOKKEEPING, HARDWARE, field
from train.data.splits import Split

# Sizes that a config need not state. A config file states those of its own data: where its source or tokeniser is
# overridden, it no longer says how many classes or tokens there are.
LEFT = "the data say it; a dry run needs it"
CLASSES = {
    "help": "Number of classes that the data must have.",
    "size_of": ("source", "label_key", "label_column"),
}
Classes = Annotated[Count, Sentinel(0, LEFT)]
Vocabulary = Annotated[
    Count, Sentinel(0, "the tokeniser says it; a dry run needs it, or a tokeniser that names its size"), Unit("tokens")
]
Slices = Annotated[str, Reader(lambda text, _: Split.parse(text))]


@dataclasses.dataclass(frozen=True)
class Batches(Checked):
    """The fields that all data have: a source, and batches."""

    source: str = field("", "Where the data come from.")
    batch_size: Annotated[Count, Unit("examples")] = field(16, "Training examples per step, over all processes.")
    eval_batch_size: Annotated[Count, Unit("examples")] = field(
        16, "Examples per evaluation step, over all processes.", role=HARDWARE
    )
    workers: Annotated[Count, at_most(1000), Sentinel(0, "a thread")] = field(
        0, "Processes that prepare batches.", role=HARDWARE
    )

    PATH: ClassVar[str] = "data."


@dataclasses.dataclass(frozen=True)
class Section(Batches):
    """The fields of data that are read: their place, and their splits."""

    data_dir: str = field(
        "", "Folder of TFDS sets or of the hub's downloads; '' is the libraries' own default.", role=BOOKKEEPING
    )
    train_split: Slices = field("train", "Split to learn from.")
    validation_split: Slices = field("validation", 'Split on which "best" is chosen.')
    test_split: Slices = field("test", "Split to measure at the end.")

    COLUMNS: ClassVar[Mapping[str, str]]  # by a column's role, the field that names it
    revision, streaming = "", False  # fields of some subclasses


def cache_dir(what: str) -> Any:
    """Declares the folder of a cache; `what` reads as in `tokenised text is`."""
    return field(
        "", f"Folder where {what} kept; '' is ATTENTION_BENCH_CACHE, else ~/.cache/attention_bench.", role=BOOKKEEPING
    )


def check_stated(field: str, stated: int | str, actual: int | str) -> None:
    """Raises UsageError if a size is stated and differs from the data's."""
    if stated and stated != actual:
        raise UsageError(
            f"data.{field} is {stated}, but the data have {actual}; set --config.data.{field}={actual}, or give the "
            "data that were meant."
        )


def sides(shape: Iterable[int]) -> str:
    """Writes a shape, such as `64x64x3`."""
    return "x".join(map(str, shape))


def needed(field: str, stated: int | str) -> int | str:
    """Gives a stated size; raises UsageError if it is not stated."""
    if not stated:
        raise UsageError(f"Without data, nothing says what data.{field} is; give --config.data.{field}=...")
    return stated


@dataclasses.dataclass(frozen=True)
class BlankTokeniser:
    """A tokeniser's replacement in a dry run, where only its size is known; ids are 0 … size - 1."""

    size: int

    special: ClassVar[Mapping[str, int]] = {"mask": 0, "start": 1, "end": 2}
