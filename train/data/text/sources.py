"""Text by name: `pydoc`, `file:PATH`, `hf:NAME` or `tfds:NAME`, as streams of documents."""

from typing import Any

from attention.errors import UsageError, unknown
from train.data.text import files, hub_text, pydoc, tfds_text
from train.data.text.documents import Documents

KINDS = ("pydoc", "file:PATH", "hf:NAME", "hf:NAME:CONFIG", "tfds:NAME", "tfds:NAME/CONFIG")


def check(source: str) -> None:
    """Raises a UsageError unless `source` is written as one of KINDS; opens nothing."""
    kind, _, rest = source.partition(":")
    if source != "pydoc" and not (kind in ("file", "hf", "tfds") and rest):
        raise unknown("data.source", source, KINDS)


def load(data: Any, split: str) -> Documents:
    """Opens one part of a source.

    Args:
      data: Fields `source`, `text_column`, `label_column` ('' for none), `revision`, `streaming` and `data_dir`.
      split: A plain name, no slice.

    Raises:
      UsageError: no such source, split, file or column; or something that cannot be read as it is.
    """
    check(data.source)
    kind, _, name = data.source.partition(":")
    if kind == "file":
        return files.read(name, split, data.text_column, data.label_column)
    if kind == "hf":
        return hub_text.read(name, split, data)
    if kind == "tfds":
        return tfds_text.read(name, split, data)
    if data.label_column:
        raise UsageError("pydoc has no classes; use another data.source, such as 'file:PATH'.")
    return pydoc.read(split)
