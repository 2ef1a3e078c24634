"""The classes of documents."""

import dataclasses
import re
from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError
from train.data.rows.splits import Split
from train.data.store.corpus import Corpus, TokenisedSplit


def shuffled(split: Split, count: Callable[[], int]) -> Int64[np.ndarray, " rows"]:
    """Returns the rows of a split, which is cut from a fixed random order; see `train.data.store.corpus.original`.

    Labelled documents are sliced so: many sets are sorted by class, and one end of them has one class. The order does
    not depend on the version of NumPy.
    """
    length = count()
    return np.argsort(np.random.PCG64(0).random_raw(length), kind="stable")[slice(*split.bounds(length))]


def with_classes(corpus: Corpus) -> Corpus:
    """Returns the corpus with its class names, in the source's order, or else sorted, numbers as numbers.

    Raises:
      UsageError: classes differ between splits.
    """
    training = corpus.splits["train"]
    names = corpus.rows[training.split.name].class_names
    if not names:
        unsorted = training.columns["text"].class_names
        numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in unsorted)
        names = tuple(sorted(unsorted, key=float if numbers else None))
    splits = {part: _labelled(text, names, part) for part, text in corpus.splits.items()}
    return dataclasses.replace(corpus, splits=splits, class_names=names)


def _labelled(text: TokenisedSplit, names: tuple[str, ...], part: str) -> TokenisedSplit:
    class_names = text.columns["text"].class_names
    strange = [name for name in class_names if name not in names]
    if strange:
        raise UsageError(
            f"The {part} data have the class {strange[0]!r}, which the training data have not: "
            f"{', '.join(names)}; look at data.label_column and data.{part}_split."
        )
    return dataclasses.replace(text, classes=tuple(map(names.index, class_names)))
