"""Random draws from one counter hash, equal bit for bit in Python, numpy and jax.numpy.

A draw is a function of a few words (its purpose, the seed, a position) and of the number of draws before it. All
arithmetic is on unsigned words of 32 bits: Python's integers on the host, where examples are made one at a time; arrays
of uint32 for many draws together; traced arrays on a device.
"""

import functools
import math
from types import ModuleType

import numpy as np

# The purpose of a draw is the first of its words, so that no two purposes share draws.
EXAMPLE, ORDER, CUTS, BATCHES, PARTNERS, EVALUATION, TRIAL = range(7)

_START = (0x243F6A88, 0x13198A2E)  # the first digits of π, a nothing-up-my-sleeve number
_WORD = 0xFFFFFFFF
_FINE = 24  # bits of a number in [0, 1), as many as float32 holds

Word = int | np.ndarray  # or a jax.Array


def namespace(value: Word) -> ModuleType:
    """Finds the module of a value's functions: jax.numpy for a traced value, numpy for one on the host."""
    return np if isinstance(value, int | np.ndarray | np.generic) else value.__array_namespace__()


def words(number: Word) -> tuple[Word, Word]:
    """Splits a number of up to 64 bits, or an array of such, into its high and its low word."""
    high, low = number >> 32, number & _WORD
    return (high, low) if isinstance(number, int) else (high.astype(np.uint32), low.astype(np.uint32))


def fold(key: tuple[Word, Word], word: Word) -> tuple[Word, Word]:
    """Mixes a word into a key of two words; different keys, and different words, give different keys."""
    high, low = key
    if not isinstance(word, int) or not isinstance(high, int):  # numpy and JAX would widen or refuse Python's integers
        high, low, word = map(_as_array, (high, low, word))
    first = _mix(_wrapped(high + word))
    return first, _mix(low ^ first)


class Draws:
    """A sequence of draws, a function of a few words; each call takes the next ones.

    Words that are arrays must share one shape, which draws then have too.
    """

    def __init__(self, *parts: Word):
        self._parts, self._taken = parts, 0

    @functools.cached_property
    def _key(self) -> tuple[Word, Word]:
        return functools.reduce(fold, self._parts, _START)

    def bits(self, count: int = 0) -> Word:
        """Draws a word of 32 bits, or `count` of them as an array."""
        number = np.arange(self._taken, self._taken + count, dtype=np.uint32) if count else self._taken
        self._taken += count or 1
        return fold(self._key, number)[1]

    def integer(self, bound: int, count: int = 0) -> Word:
        """Draws from 0 … bound - 1, as int32 in arrays; probabilities differ by bound / 2**32 at most."""
        drawn = self.bits(count) % bound
        return drawn if isinstance(drawn, int) else drawn.astype(np.int32)

    def fine(self, count: int = 0) -> Word:
        """Draws from 0 … 2**24 - 1, to be compared with `threshold`."""
        return self.bits(count) >> (32 - _FINE)

    def chance(self, p: float) -> bool | np.ndarray:
        """Draws True with probability p."""
        return self.fine() < threshold(p)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float | np.ndarray:
        """Draws from [low, high) in 2**24 steps, as float32 in arrays."""
        fine = self.fine()
        share = (fine if isinstance(fine, int) else fine.astype(np.float32)) * 2.0**-_FINE
        return low + (high - low) * share

    def generator(self) -> np.random.Generator:
        """Seeds a numpy generator with two draws, for other distributions; only on the host."""
        return np.random.default_rng([self.bits(), self.bits()])


def threshold(p: float) -> int:
    """Finds the number below which `Draws.fine` is with probability p, rounded up to a multiple of 2**-24."""
    return math.ceil(p * 2**_FINE)


def permutation(length: int, *parts: int) -> np.ndarray:
    """Permutes 0 … length - 1, as a function of a few words: each number draws its rank."""
    high, low = fold(functools.reduce(fold, parts, _START), np.arange(length, dtype=np.uint32))
    return np.argsort((low.astype(np.uint64) << np.uint64(32)) | high, kind="stable")  # `high` alone is half the key


def _mix(word: Word) -> Word:
    """Permutes words so that every bit depends on all bits (constants: C. Wellons, hash prospector)."""
    word = _wrapped((word ^ (word >> 16)) * 0x21F0AAAD)
    word = _wrapped((word ^ (word >> 15)) * 0x735A2D97)
    return word ^ (word >> 15)


def _wrapped(word: Word) -> Word:
    return word & _WORD if isinstance(word, int) else word  # arrays of uint32 wrap by themselves


def _as_array(word: Word) -> Word:
    return np.uint32(word & _WORD) if isinstance(word, int) else word.astype(np.uint32)
