"""Documents: text by name (`pydoc`, `file:PATH`, `hf:NAME` or `tfds:NAME`), its order and its classes."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from attention.errors import UsageError, unknown
from train.data.rows import classes, source
from train.data.rows.rows import DataColumn, Document, Rows
from train.data.store.corpus import Corpus, TokenisedSplit
from train.data.text import pydoc

KINDS = ("pydoc", *source.KINDS)


def check(name: str, path: str = "data.source") -> None:
    """Raises UsageError, which names the config's field, unless a source is written as one of KINDS; opens nothing."""
    if name != "pydoc" and not source.is_one(name):
        raise unknown(path, name, KINDS)


def load(data: Any, split: str) -> Rows:
    """Opens one part of a source.

    Args:
      data: Fields `source`, `text_column`, `label_column` ('' for none), `revision`, `streaming` and `data_dir`. In
        plain text every line is a document.
      split: A plain name, no slice.

    Raises:
      UsageError: there is no such source, split, file or column, or it cannot be read as it is.
    """
    if data.source == "pydoc":
        if data.label_column:
            raise UsageError("pydoc has no classes; use another data.source, such as 'file:PATH'.")
        return pydoc.read(split)
    columns = [DataColumn("data.text_column", data.text_column)]
    if data.label_column:
        columns.append(DataColumn("data.label_column", data.label_column, is_class=True))
    key = (data.text_column, data.label_column)
    return source.open_split(data, split, columns).rows(_documents, key)


def _documents(values: Iterator[tuple[str, ...]]) -> Iterator[Document]:
    return (Document(*columns) for _, *columns in values)


def with_classes(corpus: Corpus) -> Corpus:
    """Returns the corpus with its class names, in the source's order, or else sorted, numbers as numbers.

    Raises:
      UsageError: classes differ between splits.
    """
    training = corpus.splits["train"]
    names = corpus.rows[training.split.name].class_names
    names = names or classes.ordered(training.columns["text"].class_names)
    splits = {part: _labelled(text, names, part) for part, text in corpus.splits.items()}
    return dataclasses.replace(corpus, splits=splits, class_names=names)


def _labelled(text: TokenisedSplit, names: tuple[str, ...], part: str) -> TokenisedSplit:
    numbers = classes.numbers(text.columns["text"].class_names, names, part, "data.label_column")
    return dataclasses.replace(text, classes=numbers)
