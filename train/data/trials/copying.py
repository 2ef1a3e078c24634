"""Trials of copying, induction, and memory in parameters or in one state."""

import dataclasses
from typing import Annotated

import numpy as np

from attention.errors import UsageError
from attention.types import Count, at_least
from train.data import draws
from train.data.draws import Draws, Word
from train.data.pipeline import Example
from train.data.trials.trial import Trial, example, permuted, ranked

_FACTS = (draws.TRIAL, 3)  # the words that determine the facts to memorise


@dataclasses.dataclass(frozen=True)
class _Symbols(Trial):
    """The base of trials whose answers are symbols, of which there are `symbols`, besides the blank and the sign."""

    symbols: Annotated[int, at_least(2)] = 14

    answers = "symbols"

    @property
    def vocabulary(self) -> int:
        """The blank, the sign, and the symbols."""
        return 2 + self.symbols


@dataclasses.dataclass(frozen=True)
class Copying(_Symbols):
    """Symbols, a sign, and the symbols again, each to be predicted from what comes before it.

    The size counts the symbols. Chance is 1/`symbols`.

    Source: Jelassi et al. 2024, https://arxiv.org/abs/2402.01032: a state of fixed size cannot copy more than it holds,
    and a Transformer learns to copy sequences longer than those it was trained on.
    """

    size: Count = 32

    positions = 2  # every symbol but the last is read twice, and the sign once

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        symbols = 2 + draw.integer(self.symbols, most)
        xp = draws.namespace(symbols)
        place = xp.arange(self.length(most))
        tokens = xp.where(place < size, symbols[xp.clip(place, 0, most - 1)], 1)
        tokens = xp.where(place > size, symbols[xp.clip(place - size - 1, 0, most - 1)], tokens)
        there = place < 2 * size
        targets = symbols[xp.clip(place - size, 0, most - 1)]
        return example(xp.where(there, tokens, 0), targets, there & (place >= size))


@dataclasses.dataclass(frozen=True)
class SelectiveCopying(_Symbols):
    """Symbols at random places among blanks, then a sign, and as many blanks, which ask for the symbols in order.

    The size counts the symbols; the sequence has `context` tokens. Chance is 1/`symbols`.

    Source: Gu and Dao 2023, https://arxiv.org/abs/2312.00752, in the form of Poli et al. 2024 (MAD),
    https://arxiv.org/abs/2403.17844, appendix B: 16 symbols of 14 in 256 tokens. Its published generator draws the
    places of blanks from numpy's global generator, so that its seed does not determine them.
    """

    size: Count = 16
    context: Count = 64

    def __post_init__(self):
        super().__post_init__()
        if self.context < 2 * max(self.size, *self.tested, 0) + 1:
            raise UsageError(f"context={self.context} does not hold the symbols twice and a sign; raise it.")

    def length(self, size: int) -> int:
        del size
        return self.context

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        symbols, order = 2 + draw.integer(self.symbols, most), permuted(draw, self.context)
        xp = draws.namespace(symbols)
        place, sign = xp.arange(self.context), self.context - size - 1
        inside = order < sign
        chosen = inside & (xp.cumsum(inside) <= size)  # the first places in the order that come before the sign
        taken = chosen[ranked(order)]
        nth = xp.clip(xp.cumsum(taken) - 1, 0, most - 1)
        tokens = xp.where(taken, symbols[nth], xp.where(place == sign, 1, 0))
        return example(tokens, symbols[xp.clip(place - sign - 1, 0, most - 1)], place > sign)


@dataclasses.dataclass(frozen=True)
class Induction(_Symbols):
    """Random symbols with one sign among them; the sign at the end asks for the symbol that followed it.

    The size counts the tokens. Chance is 1/`symbols`.

    Source: induction heads of Gu and Dao 2023, https://arxiv.org/abs/2312.00752, section 4.1.2: 256 tokens of 16,
    tested up to 2^20.
    """

    size: Count = 64

    smallest = 3

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        symbols, bits = 2 + draw.integer(self.symbols, most), draw.bits(most)
        xp = draws.namespace(symbols)
        place = xp.arange(most)
        sign = xp.argmax(xp.where(place < size - 2, bits, 0))
        tokens = xp.where((place == sign) | (place == size - 1), 1, symbols)
        answer = xp.broadcast_to(symbols[sign + 1], (most,))
        return example(xp.where(place < size, tokens, 0), answer, place == size - 1)


@dataclasses.dataclass(frozen=True)
class Compression(_Symbols):
    """Random symbols and a sign; the last position alone must give all symbols in their places.

    The size counts the tokens, including the sign. Chance is 1/`symbols`.

    Source: compression of Poli et al. 2024 (MAD), https://arxiv.org/abs/2403.17844, appendix B: 32 tokens of 15
    symbols. Its published generator also asks for the sign, which is always right.
    """

    size: Count = 16
    symbols: Annotated[int, at_least(2)] = 15

    pooled, smallest = True, 2

    def __post_init__(self):
        super().__post_init__()
        if self.least or self.tested:
            raise UsageError(
                "compression has one size, since its last position gives all answers; leave out the others."
            )

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        symbols = 2 + draw.integer(self.symbols, most)
        xp = draws.namespace(symbols)
        symbol = xp.arange(most) < size - 1
        return example(xp.where(symbol, symbols, 1), symbols, symbol)


@dataclasses.dataclass(frozen=True)
class Memorisation(Trial):
    """Keys whose values are the same in all sequences: a sign after each key asks for its value.

    The size counts the keys of a sequence. The sequence does not contain the values, so the parameters must. Chance is
    1/`facts`.

    Source: memorisation of Poli et al. 2024 (MAD), https://arxiv.org/abs/2403.17844, appendix B: 16 keys of 127 in 32
    tokens.
    """

    size: Count = 16
    facts: Count = 127

    answers, positions = "facts", 2

    @property
    def vocabulary(self) -> int:
        """The blank, the sign, keys and values."""
        return 2 + 2 * self.facts

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        keys = draw.integer(self.facts, most)
        xp = draws.namespace(keys)
        there = xp.arange(most) < size
        facts = xp.asarray(draws.permutation(self.facts, *_FACTS).astype(np.int32))
        none = xp.zeros_like(keys)
        tokens = xp.stack([xp.where(there, 2 + keys, 0), xp.where(there, 1, 0)], 1).reshape(-1)
        targets = xp.stack([none, 2 + self.facts + facts[keys]], 1).reshape(-1)
        return example(tokens, targets, xp.stack([none > 0, there], 1).reshape(-1))
