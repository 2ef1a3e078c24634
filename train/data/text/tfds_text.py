"""Text of TensorFlow Datasets, one document an example."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from train.data.rows import columns, tfds
from train.data.text.documents import Document, Documents, digest


def read(name: str, split: str, data: Any) -> Documents:
    """One split of a prepared set; see `train.data.rows.tfds.open_split`.

    Args:
      name: As TFDS writes it.
      split: A plain name, no slice.
      data: Fields `text_column`, `label_column` ('' for none) and `data_dir`.

    Raises:
      UsageError: the set, split or feature is not there or cannot be read.
    """
    opened = tfds.open_split(name, split, data.data_dir)
    opened.check_text("data.text_column", data.text_column)
    classes = ()
    if data.label_column:
        opened.check_feature("data.label_column", data.label_column, tfds.package().features.ClassLabel)
        classes = tuple(opened.features[data.label_column].names)
    content = digest([opened.version, data.text_column, data.label_column])
    read = functools.partial(_documents, opened.records(), data.text_column, data.label_column, classes)
    return Documents(f"{split} of tfds:{name}", content, read, classes)


def _documents(
    records: Sequence[dict[str, Any]], text_column: str, label_column: str, classes: tuple[str, ...]
) -> Iterator[Document]:
    for record in records:
        text = columns.get(record, text_column).decode()
        yield Document(text, classes[int(record[label_column])] if classes else "")
