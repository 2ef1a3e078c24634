"""Vocabularies that are learned from the training split, once."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Integer

from train.data import tokenisers
from train.data.rows.rows import Rows, digest
from train.data.store.cache import make_once
from train.data.store.tokens import progress
from train.data.tokenisers import Tokeniser


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts of the training split, which can be read again from the start.

    Attributes:
      rows: Of the part that the split is of.
      columns: Which of their columns.
      key: What the choice of rows depends on.
      choose: Says of the part's rows in their order whether they are in the split; called once.
    """

    rows: Rows
    columns: tuple[str, ...]
    key: tuple[str, ...]
    choose: Callable[[], Iterable[bool]]

    @property
    def content(self) -> str:
        """A digest that differs whenever the texts differ."""
        return digest([self.rows.content, *self.key])

    def __iter__(self) -> Iterator[str]:
        chosen = itertools.compress(self.rows.read(), self._chosen)
        for row in progress(chosen, f"Learning the vocabulary of {self.rows.name}"):
            yield from (getattr(row, column) for column in self.columns)

    @functools.cached_property
    def _chosen(self) -> Iterable[bool]:
        return self.choose()


def mask(places: Integer[np.ndarray, " n"]) -> Bool[np.ndarray, " most"]:
    """True at these places, up to the last of them, where reading may end."""
    chosen = np.zeros(places.max(initial=-1) + 1, bool)
    chosen[places] = True
    return chosen


def learned(spec: str, texts: Texts, cache_dir: Path, field: str) -> Tokeniser:
    """The tokeniser of a config field's spec string: trained on the training split alone, once; or as it is."""
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec, field=field)
    path = cache_dir / "tokenisers" / f"{digest([spec, texts.content])}.json"
    make_once(path, lambda partial: partial.write_text(tokenisers.make(spec, texts).dumps(), encoding="utf-8"))
    return tokenisers.loads(path.read_text(encoding="utf-8"))
