"""A corpus of documents: a tokeniser, and tokenised text in splits."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError
from train.data import stated
from train.data.rows.rows import Rows
from train.data.rows.splits import Split
from train.data.store.tokenised_splits import OpenedSource, TokenisedSplit, original
from train.data.text import sources
from train.data.tokenisers import Tokeniser

_ORDER = 1  # the version of `shuffled`; with another number vocabularies are learned again


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Tokenised text.

    Attributes:
      tokeniser: The tokeniser of the text.
      splits: `train`, `validation` and `test`; with classes and in the order of `shuffled` where the text is labelled.
      class_names: The names of the classes of labelled text; () otherwise.
    """

    tokeniser: Tokeniser
    splits: dict[str, TokenisedSplit]
    class_names: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        """Labels are 0 … num_classes - 1."""
        return len(self.class_names)


def shuffled(split: Split, count: Callable[[], int]) -> Int64[np.ndarray, " rows"]:
    """Returns the rows of a split, which is cut from a fixed random order; see `tokenised_splits.original`.

    Labelled documents are sliced so: many sets are sorted by class, and one end of them has one class. The order does
    not depend on the version of NumPy.
    """
    length = count()
    return np.argsort(np.random.PCG64(0).random_raw(length), kind="stable")[slice(*split.bounds(length))]


def load(data: Any) -> Corpus:
    """Reads, tokenises and caches the text that a `data` section names; later calls only map the cache.

    Args:
      data: A section of `train.data.text`.

    Raises:
      UsageError: text, a tokeniser or a package is not there or cannot be read, classes differ between splits, or the
        cache cannot be written.
    """
    opened, order = OpenedSource(data, sources.load), shuffled if data.label_column else original
    key = f"order {_ORDER}" if data.label_column else ""
    tokeniser = opened.learn("tokeniser", ("text",), order, (key,))
    stated.check("vocabulary", data.vocabulary, tokeniser.size)
    if data.end_token and "end" not in tokeniser.special:
        raise UsageError(
            f"data.end_token asks for an end token, but {data.tokeniser!r} has none; set it to False (or, for words, "
            "write words(marks=True))."
        )
    splits = opened.tokenise({"text": tokeniser}, dict.fromkeys(opened.splits, order), data.end_token)
    if not data.label_column:
        return Corpus(tokeniser, splits)
    names = _class_names(opened.rows[opened.splits["train"].name], splits["train"])
    return Corpus(tokeniser, {part: _labelled(text, names, part) for part, text in splits.items()}, names)


def _class_names(documents: Rows, training: TokenisedSplit) -> tuple[str, ...]:
    """Returns the class names in the source's order, or else sorted, numbers as numbers."""
    if documents.class_names:
        return documents.class_names
    names = training.columns["text"].class_names
    numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names)
    return tuple(sorted(names, key=float if numbers else None))


def _labelled(text: TokenisedSplit, names: tuple[str, ...], part: str) -> TokenisedSplit:
    class_names = text.columns["text"].class_names
    strange = [name for name in class_names if name not in names]
    if strange:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(names)}; look at data.label_column and data.{part}_split."
        )
    return dataclasses.replace(text, classes=tuple(map(names.index, class_names)))
