"""What every source of parallel text gives: a stream of pairs that can be read again from the start."""

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from attention.errors import UsageError


class Pair(NamedTuple):
    """A text and its translation, neither empty nor with white space around it."""

    source: str
    target: str


@dataclasses.dataclass(frozen=True)
class Pairs:
    """One part of a source.

    Attributes:
      name: For messages, such as `train of file:europarl`.
      content: A digest that differs whenever the pairs differ.
      read: Starts reading; raises a UsageError on the way where a pair cannot be read.
    """

    name: str
    content: str
    read: Callable[[], Iterator[Pair]]


def stripped(rows: Iterable[tuple[str, str, str]]) -> Iterator[Pair]:
    """Pairs without white space around them; where both sides are empty, as in many corpora, there is no pair.

    Args:
      rows: Where a pair stands, for messages, its source and its target.

    Raises:
      UsageError: on the way, where only one side is empty.
    """
    for where, source, target in rows:
        pair = Pair(source.strip(), target.strip())
        if all(pair):
            yield pair
        elif any(pair):
            empty, other = ("source", "target") if pair.target else ("target", "source")
            there = textwrap.shorten(max(pair), 60, placeholder=" …")
            raise UsageError(f"{where} has an empty {empty} beside the {other} {there!r}; mend or remove the pair.")
