"""Text of Hugging Face sets, one document a row."""

import functools
from collections.abc import Iterator
from typing import Any

from attention.errors import UsageError
from train.data.rows import columns, hub
from train.data.text.documents import Document, Documents, digest

_UNLABELLED = -1  # what sets with class names give to test examples whose class is secret


def read(name: str, split: str, data: Any) -> Documents:
    """One split of a set; see `train.data.rows.hub.open_split`.

    Args:
      name: `OWNER/NAME`, or `OWNER/NAME:CONFIG`; OWNER/NAME may be a local folder.
      split: A plain name, no slice.
      data: Fields `text_column`, `label_column` ('' for none), `revision`, `streaming` and `data_dir`.

    Raises:
      UsageError: the set, split or column is not there or cannot be fetched.
    """
    opened = hub.open_split(name, split, data)
    opened.feature("data.text_column", data.text_column)
    label = opened.feature("data.label_column", data.label_column) if data.label_column else None
    classes = tuple(getattr(label, "names", ()))
    content = digest([opened.version, data.text_column, data.label_column])
    rows = functools.partial(_documents, opened, data.text_column, data.label_column, classes)
    return Documents(opened.name, content, rows, classes)


def _documents(
    opened: hub.HubSplit, text_column: str, label_column: str, classes: tuple[str, ...]
) -> Iterator[Document]:
    for where, row in opened.read([column for column in (text_column, label_column) if column]):
        label = columns.get(row, label_column) if label_column else ""
        if label is None or (classes and label == _UNLABELLED):
            raise UsageError(f"{where} has no class in {label_column!r}; use another split.")
        text = columns.text(columns.get(row, text_column), text_column, where)
        yield Document(text, classes[label] if classes else str(label))
