"""Text of TensorFlow Datasets, one document an example."""

import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from train.data import tfds_sets
from train.data.documents import Document, Documents, digest


def read(name: str, split: str, data: Any) -> Documents:
    """One split of a prepared set; see `train.data.tfds_sets.open_split`.

    Args:
      name: As TFDS writes it.
      split: A plain name, no slice.
      data: Fields `text_column`, `label_column` ('' for none) and `data_dir`.

    Raises:
      UsageError: the set, split or feature is not there or cannot be read.
    """
    tfds = tfds_sets.package()
    opened = tfds_sets.open_split(name, split, data.data_dir)
    opened.check_feature("data.text_column", data.text_column, tfds.features.Text)
    names = ()
    if data.label_column:
        opened.check_feature("data.label_column", data.label_column, tfds.features.ClassLabel)
        names = tuple(opened.features[data.label_column].names)
    records = opened.records()
    sizes = [(file.name, os.path.getsize(file)) for file in opened.files]
    content = digest([opened.builder.info.full_name, sizes, data.text_column, data.label_column])
    columns = (data.text_column, data.label_column)
    return Documents(f"{split} of tfds:{name}", content, functools.partial(_documents, records, columns, names), names)


def _documents(
    records: Sequence[dict[str, Any]], columns: tuple[str, str], names: tuple[str, ...]
) -> Iterator[Document]:
    for record in records:
        yield Document(record[columns[0]].decode(), names[int(record[columns[1]])] if names else "")
