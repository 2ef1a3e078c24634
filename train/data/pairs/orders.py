"""The order that slices of parallel text are cut from.

It is random and fixed, and keeps all pairs of one source sentence together, so that no test sentence is trained on. A
whole part keeps its original order.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from train.data.rows.rows import Pair, Rows, digest
from train.data.rows.splits import Split
from train.data.store import cache
from train.data.store.corpus import ORDER, Order, original


def order_of(split: Split, pairs: Rows, cache_dir: Path) -> Order:
    """Returns the order that a split of pairs is cut from; that of slices is made once, in a file."""
    if split.is_whole:
        return original
    path = cache_dir / "orders" / f"{digest([ORDER, pairs.content])}.npy"
    cache.make_once(path, lambda partial: _save(partial, _grouped(pairs.read())))
    return functools.partial(_sliced, str(path))


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _grouped(pairs: Iterator[Pair]) -> Int64[np.ndarray, "2 pairs"]:
    """Returns a random order that keeps the pairs of one source together, and 1 wherever another source begins."""
    digests = (hashlib.blake2b(pair.source.encode(), digest_size=8).digest() for pair in pairs)
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order].astype(np.uint64), prepend=keys[order[:1]].astype(np.uint64) + np.uint64(1)) != 0
    return np.stack([order, begins])


def _sliced(path: str, split: Split, count: Callable[[], int]) -> Int64[np.ndarray, " rows"]:
    """Returns the slice of an order, with both ends moved on to the start of another source."""
    del count  # which the order tells
    order, begins = np.load(path)
    places = np.append(np.flatnonzero(begins), len(begins))
    return order[slice(*(int(places[np.searchsorted(places, bound)]) for bound in split.bounds(len(begins))))]
