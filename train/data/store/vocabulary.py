"""Vocabularies, which are learned once from the training split."""

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
      rows: The rows of the part that the split belongs to.
      columns: The columns that hold the texts.
      key: A value that identifies the choice of rows.
      choose: Returns for each of the part's rows, in order, whether it is in the split; called once.
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
    """Returns a mask that is True at these places and ends with the last of them, where reading may end."""
    chosen = np.zeros(places.max(initial=-1) + 1, bool)
    chosen[places] = True
    return chosen


def learned(spec: str, texts: Texts, cache_dir: Path, field: str) -> Tokeniser:
    """Returns the tokeniser of a spec string, trained once on the training split where it needs training."""
    if not tokenisers.needs_fitting(spec):
        return tokenisers.make(spec, field=field)
    path = cache_dir / "tokenisers" / f"{digest([spec, texts.content])}.json"
    make_once(path, lambda partial: partial.write_text(tokenisers.make(spec, texts).dumps(), encoding="utf-8"))
    return tokenisers.loads(path.read_text(encoding="utf-8"))
