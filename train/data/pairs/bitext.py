"""Parallel text: two tokenisers, and tokenised pairs in splits."""

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from train.data import stated
from train.data.pairs import sources
from train.data.rows.rows import Pair, Rows, digest
from train.data.rows.splits import Split
from train.data.store import cache, vocabulary
from train.data.store.tokens import Lazy, Stored, tokenise
from train.data.tokenisers import Tokeniser

SIDES = ("source", "target")
_ORDER = 1  # the version of `_grouped`; with another number, orders and vocabularies are made again


@dataclasses.dataclass(frozen=True)
class ParallelText(Lazy):
    """A split of tokenised pairs.

    A slice is cut from the pairs in a fixed random order that keeps all pairs of one source sentence together, so that
    no test sentence is trained on. A whole part keeps its original order.

    Attributes:
      pairs: The part that the split belongs to.
      source: All source sentences of the part.
      target: All target sentences of the part.
      split: The split, which says which of the pairs it has.
      order: The file of that order and of the starts of sentences in it; '' where the split is a whole part.
    """

    pairs: Rows
    source: Stored
    target: Stored
    split: Split
    order: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def content(self) -> str:
        """A digest of all pairs of the part."""
        return digest([self.source.content, self.target.content])

    @functools.cached_property
    def rows(self) -> Int64[np.ndarray, " n"]:
        """The indices of the split's pairs in the part."""
        return _sliced(self.split, self.order) if self.order else np.arange(len(self.source))

    def ids(self, index: int) -> tuple[Integer[np.ndarray, " s"], Integer[np.ndarray, " t"]]:
        """Returns the ids of source and target of one pair, without special tokens, mapped from disk."""
        row = self.rows[index]
        return tuple(side.ids[slice(*side.token_offsets[row : row + 2])] for side in (self.source, self.target))

    def lengths(self, side: str) -> Int64[np.ndarray, " n"]:
        """Returns the number of tokens of each pair's `source` or `target`."""
        return np.diff(getattr(self, side).token_offsets)[self.rows]

    def texts(self, side: str, indices: Integer[np.ndarray, " k"]) -> list[str]:
        """Returns the text of the `source` or `target` of some pairs."""
        places = {int(row): place for place, row in enumerate(self.rows[indices])}
        texts = [""] * len(places)
        for row, pair in enumerate(self.pairs.read()):
            if row in places:
                texts[places[row]] = getattr(pair, side)
        return texts


@dataclasses.dataclass(frozen=True)
class Bitext:
    """Tokenised pairs.

    Attributes:
      source_tokeniser: The tokeniser of the source.
      target_tokeniser: The tokeniser of the target; the same object where both share one.
      splits: `train`, `validation` and `test`.
    """

    source_tokeniser: Tokeniser
    target_tokeniser: Tokeniser
    splits: dict[str, ParallelText]


def load(data: Any) -> Bitext:
    """Reads, tokenises and caches the pairs that a `data` section names; later calls only map the cache.

    Args:
      data: A `train.data.pairs.section.TranslationData`.

    Raises:
      UsageError: pairs, a tokeniser or a package is missing or cannot be read, or the cache cannot be written.
    """
    splits = Split.of_parts(data)
    # All are opened before the first is read, so that a missing one raises an error at once.
    pairs = {split.name: sources.load(data, split.name) for split in splits.values()}
    cache_dir, train = cache.root(data.cache_dir), splits["train"]
    orders = {part: _order_file(pairs[split.name], split, cache_dir) for part, split in splits.items()}

    def learned(field: str, *sides: str) -> Tokeniser:
        texts = _texts(pairs[train.name], train, orders["train"], sides)
        return vocabulary.learned(getattr(data, field), texts, cache_dir, f"data.{field}")

    shared = not data.target_tokeniser
    source = learned("source_tokeniser", *(SIDES if shared else SIDES[:1]))
    target = source if shared else learned("target_tokeniser", *SIDES[1:])
    stated.check("source_vocabulary", data.source_vocabulary, source.size)
    stated.check("target_vocabulary", data.target_vocabulary, target.size)
    sides = dict(zip(SIDES, (source, target), strict=True))
    stored = {
        name: [tokenise(rows.side(side), tokeniser, False, cache_dir) for side, tokeniser in sides.items()]
        for name, rows in pairs.items()
    }
    texts = {p: ParallelText(pairs[s.name], *stored[s.name], s, orders[p]) for p, s in splits.items()}
    return Bitext(source, target, texts)


def _texts(pairs: Rows, split: Split, order: str, sides: tuple[str, ...]) -> vocabulary.Texts:
    """Returns the texts that a vocabulary is learned from: some sides of the pairs of a slice."""
    key = (split.text, *sides, f"order {_ORDER}" if order else "")
    return vocabulary.Texts(pairs, sides, key, functools.partial(_chosen, split, order))


def _chosen(split: Split, order: str) -> Iterable[bool]:
    return vocabulary.mask(_sliced(split, order)) if order else itertools.repeat(True)


def _order_file(pairs: Rows, split: Split, cache_dir: Path) -> str:
    """Returns the file of the order that a slice is cut from, which is made once; '' where there is no slice."""
    if split.is_whole:
        return ""
    path = cache_dir / "orders" / f"{digest([_ORDER, pairs.content])}.npy"
    cache.make_once(path, lambda partial: _save(partial, _grouped(pairs.read())))
    return str(path)


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


def _sliced(split: Split, path: str) -> Int64[np.ndarray, " n"]:
    """Returns the slice of an order, with both ends moved on to the start of another source."""
    order, begins = np.load(path)
    places = np.append(np.flatnonzero(begins), len(begins))
    return order[slice(*(int(places[np.searchsorted(places, bound)]) for bound in split.bounds(len(begins))))]
