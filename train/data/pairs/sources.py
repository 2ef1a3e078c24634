"""Parallel text by name (`dates(...)`, `file:PATH`, `hf:NAME` or `tfds:NAME`), and the order of its pairs."""

import functools
import hashlib
import io
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from attention import specs
from attention.errors import UsageError
from train.data.pairs.dates import Dates
from train.data.rows import source
from train.data.rows.rows import DataColumn, Pair, Rows, digest
from train.data.rows.splits import Split
from train.data.store import blocks, cache
from train.data.store.corpus import ORDER, Order, original

KINDS = ("dates", "dates(sources=('en', 'fr'), targets=('de',))", *source.KINDS)
FIELDS = ("data.source_column", "data.target_column")


def check(name: str, path: str = "data.source") -> None:
    """Raises UsageError unless the source is written as one of KINDS, with valid options; opens nothing."""
    if not source.is_one(name):
        _dates(name, path)


def load(data: Any, split: str) -> Rows:
    """Opens one part of a source.

    Args:
      data: Fields `source`, `source_column`, `target_column`, `revision`, `streaming` and `data_dir`. Columns of tables
        may be nested, such as `translation.de`; those of plain text between tabs are numbers from '1' on, those of
        aligned files languages; dates have none.
      split: A plain name, no slice.

    Raises:
      UsageError: no such source, split, file or column; or something that cannot be read as it is.
    """
    if not source.is_one(data.source):
        return _dates(data.source).read(split)
    names = (data.source_column, data.target_column)
    if "" in names or names[0] == names[1]:
        raise UsageError(f"{' and '.join(FIELDS)} must name two columns (or languages), but they are {names}.")
    columns = [DataColumn(field, name) for field, name in zip(FIELDS, names, strict=True)]
    return source.open_split(data, split, columns).rows(stripped, names)


def stripped(rows: Iterator[tuple[str, ...]]) -> Iterator[Pair]:
    """Yields pairs without white space around them; leaves out pairs of empty sides, which many corpora have.

    Args:
      rows: The place of each pair, for messages, its source and its target.

    Raises:
      UsageError: only one side of a pair is empty; raised on reaching it.
    """
    for where, first, second in rows:
        pair = Pair(first.strip(), second.strip())
        if all(pair):
            yield pair
        elif any(pair):
            empty, filled = ("source", "target") if pair.target else ("target", "source")
            there = textwrap.shorten(max(pair), 60, placeholder=" …")
            raise UsageError(f"{where} has an empty {empty} beside the {filled} {there!r}; mend or remove the pair.")


def _dates(name: str, path: str = "data.source") -> Dates:
    item = specs.parse_one(name, path, ["dates"], KINDS)
    specs.check_options(item, Dates)
    return Dates(**item.options)


def source_of(pair: Pair) -> bytes:
    """Returns what all pairs of one source sentence share."""
    return pair.source.encode()


def order_of(split: Split, pairs: Rows, cache_dir: Path, key_of: Callable[[Any], bytes] = source_of) -> Order:
    """Returns the order that a split of pairs is cut from.

    A whole part keeps its order. That of slices is random and fixed, and keeps all pairs of one source sentence
    together, so that no test sentence is trained on; it is made once, in a file.

    Args:
      split: The split.
      pairs: All rows of its part.
      cache_dir: The root of all caches.
      key_of: Returns what rows share that are kept together.
    """
    if split.is_whole:
        return original
    path = cache_dir / "orders" / f"{digest([ORDER, pairs.content])}.npy"
    cache.make_once(path, lambda partial: _save(partial, _grouped(map(key_of, pairs.read()))))
    return functools.partial(_sliced, str(path))


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _grouped(sources: Iterator[bytes]) -> Int64[np.ndarray, "2 pairs"]:
    """Returns a random order that keeps the pairs of one source together, and 1 wherever another source begins."""
    digests = (hashlib.blake2b(source, digest_size=8).digest() for source in sources)
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order].astype(np.uint64), prepend=keys[order[:1]].astype(np.uint64) + np.uint64(1)) != 0
    return np.stack([order, begins])


def _sliced(path: str, split: Split, count: Callable[[], int]) -> Int64[np.ndarray, " rows"]:
    """Returns the slice of an order, with both ends moved on to the start of another source."""
    del count  # which the order tells
    order, begins = np.load(io.BytesIO(blocks.read(Path(path))))
    places = np.append(np.flatnonzero(begins), len(begins))
    return order[slice(*(int(places[np.searchsorted(places, bound)]) for bound in split.bounds(len(begins))))]
