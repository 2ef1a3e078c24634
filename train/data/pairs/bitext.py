"""Parallel text: two tokenisers, and tokenised pairs in splits."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer

from train.data import stated
from train.data.pairs import sources
from train.data.pairs.pair import Pair, Pairs
from train.data.rows.splits import PARTS, Split
from train.data.store import stored as token_cache
from train.data.store.stored import Stored
from train.data.text.corpus import cache_folder, learned_tokeniser
from train.data.text.documents import Document, Documents, digest
from train.data.tokenisers import Tokeniser

SIDES = ("source", "target")
_ORDER = 1  # of `_grouped`; another number makes orders and vocabularies anew


@dataclasses.dataclass(frozen=True)
class PairTokens:
    """A split of tokenised pairs.

    A slice is cut from the pairs in an order of chance that is always the same, in which pairs of one source sentence
    stand together and are never parted: what is tested was not trained on. A whole part keeps its own order.

    Attributes:
      pairs: The part that the split is of.
      source: All its source sentences.
      target: All its target sentences.
      split: Which of them.
      order: File of that order, and of where other sentences begin in it; '' where the split is a whole part.
    """

    pairs: Pairs
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
        """Which of the part's pairs are in it."""
        if not self.order:
            return np.arange(len(self.source))
        order, begins = np.load(self.order)
        return order[_bounds(self.split, begins)]

    def ids(self, index: int) -> tuple[Integer[np.ndarray, " s"], Integer[np.ndarray, " t"]]:
        """Source and target of one pair, without special tokens, on disk."""
        row = self.rows[index]
        return tuple(side.ids[slice(*side.token_offsets[row : row + 2])] for side in (self.source, self.target))

    def lengths(self, side: str) -> Int64[np.ndarray, " n"]:
        """Tokens of each pair's `source` or `target`."""
        return np.diff(getattr(self, side).token_offsets)[self.rows]

    def texts(self, side: str, indices: Integer[np.ndarray, " k"]) -> list[str]:
        """Of some pairs: the `source` or `target` as it is written."""
        wanted = {int(row): place for place, row in enumerate(self.rows[indices])}
        found = [""] * len(wanted)
        for row, pair in enumerate(self.pairs.read()):
            if row in wanted:
                found[wanted[row]] = getattr(pair, side)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True)
class Bitext:
    """Tokenised pairs.

    Attributes:
      source_tokeniser: Of the source.
      target_tokeniser: Of the target; the same object where both share one.
      splits: `train`, `validation` and `test`.
    """

    source_tokeniser: Tokeniser
    target_tokeniser: Tokeniser
    splits: dict[str, PairTokens]


def load(data: Any) -> Bitext:
    """Reads, tokenises and caches the pairs that a `data` section names; the second time it only maps the cache.

    Args:
      data: A `train.data.pairs.section.TranslationData`.

    Raises:
      UsageError: pairs, a tokeniser or a package is not there or cannot be read, or the cache cannot be written.
    """
    splits = {part: Split.parse(getattr(data, f"{part}_split")) for part in PARTS}
    # All are opened before the first is read: what is missing is said at once.
    parts = {split.name: sources.load(data, split.name) for split in splits.values()}
    cache_dir = cache_folder(data.cache_dir)
    orders = {part: _order_file(parts[split.name], split, cache_dir) for part, split in splits.items()}
    training = (parts[splits["train"].name], splits["train"], orders["train"])
    shared = not data.target_tokeniser
    texts = _Texts(*training, SIDES if shared else SIDES[:1])
    source = learned_tokeniser(data.source_tokeniser, texts, cache_dir, "data.source_tokeniser")
    target = source
    if not shared:
        texts = _Texts(*training, SIDES[1:])
        target = learned_tokeniser(data.target_tokeniser, texts, cache_dir, "data.target_tokeniser")
    stated.check("source_vocabulary", data.source_vocabulary, source.size)
    stated.check("target_vocabulary", data.target_vocabulary, target.size)
    stored = {
        name: [
            token_cache.stored(_documents(pairs, side), tokeniser, False, cache_dir)
            for side, tokeniser in zip(SIDES, (source, target), strict=True)
        ]
        for name, pairs in parts.items()
    }
    found = {p: PairTokens(parts[s.name], *stored[s.name], s, orders[p]) for p, s in splits.items()}
    return Bitext(source, target, found)


@dataclasses.dataclass(frozen=True)
class _Texts:
    """What a vocabulary is learned from: some sides of the pairs of a slice."""

    pairs: Pairs
    split: Split
    order: str
    sides: tuple[str, ...]

    @property
    def content(self) -> str:
        """A digest that differs whenever the texts differ."""
        return digest([self.pairs.content, self.split.text, *self.sides, f"order {_ORDER}" if self.order else ""])

    def __iter__(self) -> Iterator[str]:
        chosen = self._chosen
        for row, pair in enumerate(token_cache.progress(self.pairs.read(), f"Learning {self.pairs.name}")):
            if chosen is None or chosen[row]:
                yield from (getattr(pair, side) for side in self.sides)

    @functools.cached_property
    def _chosen(self) -> Bool[np.ndarray, " pairs"] | None:
        if not self.order:
            return None
        order, begins = np.load(self.order)
        chosen = np.zeros(len(order), bool)
        chosen[order[_bounds(self.split, begins)]] = True
        return chosen


def _documents(pairs: Pairs, side: str) -> Documents:
    """One side of the pairs."""
    content = digest([pairs.content, side])
    return Documents(f"the {side} side of {pairs.name}", content, functools.partial(_side, pairs, side))


def _side(pairs: Pairs, side: str) -> Iterator[Document]:
    return (Document(getattr(pair, side)) for pair in pairs.read())


def _order_file(pairs: Pairs, split: Split, cache_dir: Path) -> str:
    """The order that a slice is cut from, made once; '' where there is no slice."""
    if not (split.start or split.stop):
        return ""
    path = cache_dir / "orders" / f"{digest([_ORDER, pairs.content])}.npy"
    token_cache.once(path, lambda partial: _save(partial, _grouped(pairs.read())))
    return str(path)


def _save(path: Path, array: np.ndarray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


def _grouped(pairs: Iterator[Pair]) -> Int64[np.ndarray, "2 pairs"]:
    """An order of chance in which the pairs of one source stand together, and 1 wherever another source begins."""
    digests = (hashlib.blake2b(pair.source.encode(), digest_size=8).digest() for pair in pairs)
    keys = np.frombuffer(b"".join(digests), ">u8")
    order = np.argsort(keys, kind="stable")
    begins = np.diff(keys[order].astype(np.uint64), prepend=keys[order[:1]].astype(np.uint64) + np.uint64(1)) != 0
    return np.stack([order, begins])


def _bounds(split: Split, begins: np.ndarray) -> slice:
    """The slice's bounds, each moved on to where another source begins."""
    places = np.append(np.flatnonzero(begins), len(begins))
    return slice(*(int(places[np.searchsorted(places, bound)]) for bound in split.bounds(len(begins))))
