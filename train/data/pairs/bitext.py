"""Parallel text: two tokenisers, and tokenised pairs in splits."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from train.data import stated
from train.data.pairs import sources
from train.data.rows.rows import Pair, Rows, digest
from train.data.rows.splits import Split
from train.data.store import cache
from train.data.store.tokenised_splits import OpenedSource, Order, TokenisedSplit, original
from train.data.tokenisers import Tokeniser

_ORDER = 1  # the version of `_grouped`; with another number, orders and vocabularies are made again


@dataclasses.dataclass(frozen=True)
class Bitext:
    """Tokenised pairs.

    A slice is cut from the pairs in a fixed random order that keeps all pairs of one source sentence together, so that
    no test sentence is trained on. A whole part keeps its original order.

    Attributes:
      source_tokeniser: The tokeniser of the source.
      target_tokeniser: The tokeniser of the target; the same object where both share one.
      splits: `train`, `validation` and `test`, whose columns are `source` and `target`.
      pairs: The pairs of the parts that the splits are cut from, by the names of the parts.
    """

    source_tokeniser: Tokeniser
    target_tokeniser: Tokeniser
    splits: dict[str, TokenisedSplit]
    pairs: dict[str, Rows]

    def texts(self, part: str, side: str, indices: Integer[np.ndarray, " k"]) -> list[str]:
        """Returns the text of the `source` or `target` of some pairs of a split."""
        tokens = self.splits[part]
        places = {int(row): place for place, row in enumerate(tokens.rows[indices])}
        texts = [""] * len(places)
        for row, pair in enumerate(self.pairs[tokens.split.name].read()):
            if row in places:
                texts[places[row]] = getattr(pair, side)
        return texts


def load(data: Any) -> Bitext:
    """Reads, tokenises and caches the pairs that a `data` section names; later calls only map the cache.

    Args:
      data: A `train.data.pairs.section.TranslationData`.

    Raises:
      UsageError: pairs, a tokeniser or a package is missing or cannot be read, or the cache cannot be written.
    """
    opened = OpenedSource(data, sources.load)
    orders = {part: _order(opened, split) for part, split in opened.splits.items()}

    def learned(field: str, *sides: str) -> Tokeniser:
        order = orders["train"]
        return opened.learn(field, sides, order, (*sides, "" if order is original else f"order {_ORDER}"))

    shared = not data.target_tokeniser
    source = learned("source_tokeniser", *(("source", "target") if shared else ("source",)))
    target = source if shared else learned("target_tokeniser", "target")
    stated.check("source_vocabulary", data.source_vocabulary, source.size)
    stated.check("target_vocabulary", data.target_vocabulary, target.size)
    splits = opened.tokenise({"source": source, "target": target}, orders)
    return Bitext(source, target, splits, opened.rows)


def _order(opened: OpenedSource, split: Split) -> Order:
    """Returns the order that a split is cut from; that of slices is made once, in a file."""
    if split.is_whole:
        return original
    pairs = opened.rows[split.name]
    path = opened.cache_dir / "orders" / f"{digest([_ORDER, pairs.content])}.npy"
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
