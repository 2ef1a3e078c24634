"""Tokenised text on disk, made once and mapped into memory: a folder of plain arrays for each text and tokeniser."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError
from train.data.encodings.cache import Array, Lazy, describe, make_once, opened, progress
from train.data.sources.rows import Rows, digest
from train.data.tokenisers import Tokeniser

_FORMAT = 3  # the version of the folders; with another number they are made again
# Texts are encoded together up to so many, or so many characters, which bounds memory.
_BATCH_TEXTS, _BATCH_CHARACTERS = 1024, 1_000_000


@dataclasses.dataclass(frozen=True)
class Stored(Lazy):
    """A tokenised text.

    Attributes:
      ids: The ids of all documents, end to end, `(tokens,)`; uint16 where they fit, else uint32.
      lengths: The number of tokens of each document; int32 `(documents,)`.
      sizes: Likewise its bytes in UTF-8.
      labels: Each document's class, an index of `class_names`.
      content: A digest of all documents and their classes, which does not depend on where or when they were read.
      class_names: The names of the classes, in the source's order, or else in the order of their first rows.
    """

    ids: Array
    lengths: Array
    sizes: Array
    labels: Array
    content: str = ""
    class_names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @functools.cached_property
    def token_offsets(self) -> Int64[np.ndarray, " n"]:
        """Where each document begins among the ids, and where the last one ends."""
        return np.append(0, np.cumsum(self.lengths[:], dtype=np.int64))


def tokenise(rows: Rows, column: str, tokeniser: Tokeniser, end: bool, cache_dir: Path) -> Stored:
    """Encodes a column, unless the cache has it.

    Args:
      rows: The documents to encode; their classes, if they have any, are kept too.
      column: The role of the column of the text.
      tokeniser: The tokeniser.
      end: Whether each document is followed by the tokeniser's end token.
      cache_dir: The root of all caches.

    Raises:
      UsageError: a document cannot be read, there is no document or token, or the cache cannot be written.
    """
    key = digest([_FORMAT, rows.content, column, *rows.class_names, tokeniser.dumps(), end])
    write = functools.partial(_write, rows=rows, column=column, tokeniser=tokeniser, end=end)
    arrays, content, class_names = opened(make_once(cache_dir / "texts" / key, write))
    return Stored(**arrays, content=content, class_names=class_names)


def _write(folder: Path, rows: Rows, column: str, tokeniser: Tokeniser, end: bool) -> None:
    folder.mkdir()
    types = {"ids": "uint16" if tokeniser.size <= 2**16 else "uint32"}
    types |= dict.fromkeys(("lengths", "sizes", "labels"), "int32")
    counts = dict.fromkeys(types, 0)
    classes = {name: number for number, name in enumerate(rows.class_names)}
    after = [tokeniser.special["end"]] if end else []
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in types}
        documents = ((row[column], row.get("label", "")) for row in progress(rows.read(), f"Encoding {rows.name}"))
        for batch in _batches(documents):
            texts, labels = zip(*batch, strict=True)
            encoded = [np.append(ids, after) for ids in tokeniser.encode_batch(texts)]
            columns = {
                "ids": np.concatenate(encoded),
                "lengths": [len(ids) for ids in encoded],
                "sizes": [len(text.encode()) for text in texts],
                "labels": [classes.setdefault(label, len(classes)) for label in labels],
            }
            for name, values in columns.items():
                files[name].write(np.asarray(values, types[name]))
                counts[name] += len(values)
    if not counts["ids"]:
        raise UsageError(f"There is no text in {rows.name}; give a source that has some.")
    describe(folder, {name: (kind, (counts[name],)) for name, kind in types.items()}, classes)


def _batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document[0])
        if len(batch) == _BATCH_TEXTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
