"""Tokenised text on disk, made once and mapped into memory: a folder of plain arrays for each text and tokeniser."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from attention.errors import UsageError
from train.data.encodings import cache
from train.data.encodings.cache import Array, Chunk, Lazy
from train.data.sources.rows import Rows, digest
from train.data.tokenisers import Tokeniser

_FORMAT = 3  # the version of the folders; with another number they are made again
# Texts are encoded together up to so many, or so many characters, which bounds memory.
_BATCH_TEXTS, _BATCH_CHARACTERS = 1024, 1_000_000


@dataclasses.dataclass(frozen=True)
class Stored(Lazy):
    """A tokenised text: the ids of all documents end to end, uint16 where they fit, else uint32.

    For each document there are the number of its tokens and of its bytes in UTF-8, and its class, an index of
    `class_names`: the source's order, or else that of their first rows. The digest `content` is of documents and
    classes alone, wherever and whenever they were read.
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
    """Encodes the text in a column of some rows, unless the cache has it; classes are kept too.

    With `end`, each document is followed by the tokeniser's end token. Raises UsageError where there is no text.
    """
    key = digest([_FORMAT, rows.content, column, *rows.class_names, tokeniser.dumps(), end])
    encoded = functools.partial(_encoded, rows, column, tokeniser, [tokeniser.special["end"]] if end else [])
    arrays, content, class_names = cache.arrays(cache_dir / "texts" / key, encoded, rows.class_names)
    return Stored(**arrays, content=content, class_names=class_names)


def _encoded(
    rows: Rows, column: str, tokeniser: Tokeniser, after: list[int], classes: dict[str, int]
) -> Iterator[Chunk]:
    kind, count = np.uint16 if tokeniser.size <= 2**16 else np.uint32, 0
    read = cache.progress(rows.read(), f"Encoding {rows.name}")
    for batch in _batches((row[column], row.get("label", "")) for row in read):
        texts, labels = zip(*batch, strict=True)
        ids = [np.append(ids, after) for ids in tokeniser.encode_batch(texts)]
        yield {
            "ids": np.concatenate(ids).astype(kind),
            "lengths": np.array([len(some) for some in ids], np.int32),
            "sizes": np.array([len(text.encode()) for text in texts], np.int32),
            "labels": np.array([classes.setdefault(label, len(classes)) for label in labels], np.int32),
        }
        count += sum(map(len, ids))
    if not count:
        raise UsageError(f"There is no text in {rows.name}; give a source that has some.")


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
