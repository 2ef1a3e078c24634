"""Tokenised text on disk, made once and mapped into memory: a folder of plain arrays for each text and tokeniser."""

import contextlib
import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from attention.errors import UsageError
from train.data.rows.rows import Document, Row, Rows, digest
from train.data.store import blocks
from train.data.store.blocks import CheckedArray
from train.data.store.cache import make_once
from train.data.tokenisers import Tokeniser

_FORMAT = 2  # the version of the folders; with another number they are made again
ABOUT = "about.json"  # the description in a folder
# Documents are encoded together up to so many, or so many characters, which bounds memory.
_BATCH_DOCUMENTS, _BATCH_CHARACTERS = 1024, 1_000_000


class Lazy:
    """A dataclass that opens or makes arrays on first use; pickles have its fields without the arrays."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def _mapped(name: str) -> Any:
    """Returns a property of `Stored` that reads all of one of its arrays on first use."""
    return functools.cached_property(lambda stored: stored._array(name)[:])


@dataclasses.dataclass(frozen=True)
class StoredRows(Lazy):
    """Rows as arrays on disk, and a file that describes them.

    Attributes:
      folder: The folder of both.
    """

    folder: str

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The description."""
        return json.loads(blocks.read(Path(self.folder), ABOUT))

    @property
    def content(self) -> str:
        """A digest of all rows and their classes, which does not depend on where or when they were read."""
        return self.about["content"]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, in the source's order, or else in the order of their first rows."""
        return tuple(self.about["class_names"])


@dataclasses.dataclass(frozen=True)
class Stored(StoredRows):
    """A tokenised text.

    Attributes:
      ids: The ids of all documents, end to end, `(tokens,)`; uint16 where they fit, else uint32.
      token_offsets: Document i has the tokens `token_offsets[i]` to `token_offsets[i + 1]`; int64 `(documents + 1,)`.
      byte_offsets: Likewise its bytes of the text in UTF-8.
      labels: Each document's class, an index of `class_names`; int32 `(documents,)`.
    """

    token_offsets = _mapped("token_offsets")
    byte_offsets = _mapped("byte_offsets")
    labels = _mapped("labels")

    @functools.cached_property
    def ids(self) -> CheckedArray:
        """See above; they are compared as they are read."""
        return self._array("ids")

    def __len__(self) -> int:
        """Returns the number of documents."""
        return len(self.token_offsets) - 1

    def _array(self, name: str) -> CheckedArray:
        return blocks.mapped(Path(self.folder), name, self.about["arrays"][name]["dtype"])


@dataclasses.dataclass(frozen=True)
class BlankText(Stored):
    """Replaces a stored text in a dry run, by one document of zeros.

    Attributes:
      length: The number of its tokens.
    """

    folder: str = ""
    length: int = 0

    def _array(self, name: str) -> CheckedArray:
        lengths = {"ids": self.length, "labels": 1}
        return CheckedArray(np.zeros(lengths[name], np.int64) if name in lengths else np.array([0, self.length]))


def tokenise(documents: Rows, tokeniser: Tokeniser, end: bool, cache_dir: Path) -> Stored:
    """Returns the tokenised documents, from the cache or made now.

    Args:
      documents: The documents to encode.
      tokeniser: The tokeniser.
      end: Whether each document is followed by the tokeniser's end token.
      cache_dir: The root of all caches.

    Raises:
      UsageError: a document cannot be read, there is no document or token, or the cache cannot be written.
    """
    key = digest([_FORMAT, documents.content, *documents.class_names, tokeniser.dumps(), end])
    folder = cache_dir / "texts" / key
    make_once(folder, lambda partial: _write(partial, documents, tokeniser, end))
    return Stored(str(folder))


def progress(rows: Iterable[Row], what: str) -> Iterator[Row]:
    """Yields the rows and counts them in a progress bar on a terminal."""
    return iter(tqdm(rows, desc=what, unit=" rows", disable=None, dynamic_ncols=True))


def _write(folder: Path, documents: Rows, tokeniser: Tokeniser, end: bool) -> None:
    folder.mkdir()
    ids = np.uint16 if tokeniser.size <= 2**16 else np.uint32
    types = {"ids": ids, "token_offsets": np.int64, "byte_offsets": np.int64, "labels": np.int32}
    with contextlib.ExitStack() as stack:
        files = {name: stack.enter_context(open(folder / name, "wb")) for name in types}
        append = lambda name, values: files[name].write(np.asarray(values, types[name]))  # noqa: E731
        class_names = _fill(append, documents, tokeniser, end)
    arrays, digests = {}, []
    for name, dtype in types.items():
        length = (folder / name).stat().st_size // np.dtype(dtype).itemsize
        arrays[name] = {"dtype": np.dtype(dtype).name, "length": length}
        with open(folder / name, "rb") as file:
            digests.append(hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest())
    content = digest([*digests, *class_names])
    about = {"name": documents.name, "content": content, "class_names": class_names, "arrays": arrays}
    (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")


def _fill(append: Callable[[str, Any], object], documents: Rows, tokeniser: Tokeniser, end: bool) -> list[str]:
    """Appends all documents to the arrays by name; returns the class names."""
    after = [tokeniser.special["end"]] if end else []
    classes = {name: number for number, name in enumerate(documents.class_names)}
    totals = {"token_offsets": 0, "byte_offsets": 0}
    for name in totals:
        append(name, [0])
    for batch in _batches(progress(documents.read(), f"Encoding {documents.name}")):
        encoded = tokeniser.encode_batch([document.text for document in batch])
        encoded = [np.append(ids, after) for ids in encoded] if end else encoded
        sizes = {"token_offsets": map(len, encoded), "byte_offsets": (len(d.text.encode()) for d in batch)}
        for name, added in sizes.items():
            offsets = totals[name] + np.cumsum(np.fromiter(added, np.int64, len(batch)))
            append(name, offsets)
            totals[name] = int(offsets[-1])
        append("ids", np.concatenate(encoded))
        append("labels", [classes.setdefault(d.label, len(classes)) for d in batch])
    if not totals["token_offsets"]:
        raise UsageError(f"There is no text in {documents.name}; give a source that has some.")
    return list(classes)


def _batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
