"""Trials of state: the result of a sequence of changes, at every position."""

import dataclasses
import functools
import itertools
import re
from typing import Annotated

import numpy as np

from attention.errors import UsageError
from attention.types import Count, Reader
from train.data import draws
from train.data.draws import Draws, Word
from train.data.pipeline import Example
from train.data.trials.trial import Array, Trial, example

Permutation = tuple[int, ...]


def _is_even(permutation: Permutation) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 0


def elements(group: str) -> list[Permutation]:
    """Lists the elements of `Z2`, `S3`, `A5` and so on as permutations, identity first; refuses other groups."""
    kind, degree = group[:1], int(group[1:]) if re.fullmatch(r"[ZSA][1-9]\d?", group) else 0
    if not degree or degree > (64 if kind == "Z" else 5) or degree < (3 if kind == "A" else 2):
        raise UsageError(f"group must be Z2 to Z64, S2 to S5 or A3 to A5, but it is {group!r}.")
    if kind == "Z":
        return [tuple((number + shift) % degree for number in range(degree)) for shift in range(degree)]
    everything = itertools.permutations(range(degree))
    return [element for element in everything if kind == "S" or _is_even(element)]


@functools.cache
def products(group: str) -> np.ndarray:
    """Tabulates products by number: `products(group)[b, a]` is a, followed by b."""
    members = elements(group)
    number = {element: place for place, element in enumerate(members)}
    return np.array([[number[tuple(b[x] for x in a)] for a in members] for b in members], np.int32)


@dataclasses.dataclass(frozen=True)
class Words(Trial):
    """Elements of a group; each position asks for the product of all so far.

    The size counts the elements. In words longer than training's, only the positions beyond those count. `group='Z2'`
    is parity, `Z5` addition modulo 5; `S3`, `A5` and `S5` are permutations. As sequences grow, those of `A5` and `S5`
    need more than a Transformer of fixed depth or a diagonal state has. Chance is 1/the number of elements.

    Source: word problems of Merrill et al. 2024, https://arxiv.org/abs/2404.08819; parity, trained on short sequences
    and tested on long ones, of Grazzi et al. 2024, https://arxiv.org/abs/2411.12537.
    """

    size: Count = 32
    group: Annotated[str, Reader(lambda group, path: elements(group))] = "Z2"

    @property
    def vocabulary(self) -> int:
        """The elements, and the blank."""
        return 1 + len(products(self.group))

    @property
    def chance(self) -> float:
        return 1 / len(products(self.group))

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        word = draw.integer(len(products(self.group)), most)
        xp = draws.namespace(word)
        place = xp.arange(most)
        there = place < size
        asked = there & ((size <= self.size) | (place >= self.size))
        return example(xp.where(there, 1 + word, 0), 1 + _scanned(word, products(self.group)), asked)


def _scanned(word: Array, table: np.ndarray) -> Array:
    """Multiplies all elements up to each place, in doubling steps."""
    xp = draws.namespace(word)
    table, place, reach = xp.asarray(table), xp.arange(len(word)), 1
    while reach < len(word):
        before = xp.roll(word, reach)
        word = xp.where(place >= reach, table[word, before], word)
        reach *= 2
    return word
