"""Text in local files, read as a stream: one document a line of text, or a row of a table."""

import functools
from collections.abc import Iterator
from pathlib import Path

from attention.errors import UsageError
from train.data.rows import columns, files
from train.data.text.documents import Document, Documents, digest


def read(path: str, split: str, text_column: str, label_column: str) -> Documents:
    """The documents of one split.

    Args:
      path: A file, a glob, or a folder; see `train.data.rows.files.find`.
      split: A plain name, no slice.
      text_column: Of tables: the column of the text.
      label_column: Of tables: the column of the class; '' for none.

    Raises:
      UsageError: no such file or split; reading raises it for content that is not what it should be.
    """
    found = files.find(path, split)
    kinds = [files.suffix(file) for file in found]
    if label_column and ".txt" in kinds:
        tables = ", ".join(kind for kind in files.KINDS if kind != ".txt")
        raise UsageError(f"{str(found[0])!r} is plain text, which has no classes; use one of {tables}.")
    content = digest([text_column, label_column, *kinds, *map(files.fingerprint, found)])
    names = (text_column, label_column)
    return Documents(f"{split} of file:{path}", content, functools.partial(_documents, found, names))


def _documents(found: list[Path], names: tuple[str, str]) -> Iterator[Document]:
    for file in found:
        yield from map(Document, files.lines(file)) if files.suffix(file) == ".txt" else _rows(file, names)


def _rows(file: Path, names: tuple[str, str]) -> Iterator[Document]:
    text_column, label_column = names
    for where, row in files.rows(file):
        text = columns.require(row, text_column, "data.text_column", where)
        label = columns.require(row, label_column, "data.label_column", where) if label_column else ""
        if label is None or (label_column and label == ""):
            raise UsageError(f"{where} has no class in {label_column!r}.")
        yield Document(columns.text(text, text_column, where), str(label))
