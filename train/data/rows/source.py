"""The sources that a config's `data.source` names: `file:PATH`, `hf:NAME` or `tfds:NAME`; `folder:DIR` of images."""

from collections.abc import Sequence
from typing import Any

from train.data.rows import folders, hub, local, tfds
from train.data.rows.rows import DataColumn, OpenedSplit

KINDS = ("file:PATH", "hf:NAME", "hf:NAME:CONFIG", "tfds:NAME", "tfds:NAME/CONFIG")


def is_one(source: str) -> bool:
    """Returns whether a source is written as one of KINDS."""
    kind, _, name = source.partition(":")
    return kind in ("file", "hf", "tfds") and bool(name)


def open_split(data: Any, split: str, columns: Sequence[DataColumn]) -> OpenedSplit:
    """Opens a split.

    Args:
      data: Fields `source` (one of KINDS, or `folder:DIR`), `revision`, `streaming` and `data_dir`.
      split: A plain name, no slice.
      columns: The columns to read, of which at most one is a class.

    Raises:
      UsageError: the source, split or a column does not exist, or cannot be read as it is.
    """
    kind, _, name = data.source.partition(":")
    if kind == "file":
        return local.open_split(name, split, columns)
    if kind == "folder":
        return folders.open_split(name, split, columns)
    if kind == "hf":
        return hub.open_split(name, split, data, columns)
    return tfds.open_split(name, split, data.data_dir).of(columns)
