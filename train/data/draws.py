"""Draws from one counter hash, which are bit for bit alike in Python, numpy and jax.numpy.

What is random about training is a function of a few words (what it is for, the seed, a position) and of how many draws
came before. All arithmetic is that of unsigned words of 32 bits: Python's integers on the host, where one example at a
time is made; arrays of uint32, where many draws are made together; traced arrays on a device.
"""

import functools
import math
from types import ModuleType

import numpy as np

# What draws are for, the first of their words, so that no use shares draws with another.
EXAMPLE, ORDER, CUTS, BATCHES, PARTNERS, EVALUATION, TRIAL = range(7)

_START = (0x243F6A88, 0x13198A2E)  # the first digits of π, which hide nothing
_WORD = 0xFFFFFFFF
_FINE = 24  # bits of a number in [0, 1), all of which float32 holds

Word = int | np.ndarray  # or a jax.Array


def namespace(value: Word) -> ModuleType:
    """Finds the module of functions for a value: jax.numpy for traced ones, numpy for those of the host."""
    return np if isinstance(value, int | np.ndarray | np.generic) else value.__array_namespace__()


def words(number: Word) -> tuple[Word, Word]:
    """Splits a number of up to 64 bits, or an array of them, into its high and its low word."""
    high, low = number >> 32, number & _WORD
    return (high, low) if isinstance(number, int) else (high.astype(np.uint32), low.astype(np.uint32))


def fold(key: tuple[Word, Word], word: Word) -> tuple[Word, Word]:
    """Mixes a word into a key of two words. Different keys stay different, and different words make different keys."""
    high, low = key
    if not isinstance(word, int) or not isinstance(high, int):  # numpy and JAX would widen or refuse Python's integers
        high, low, word = map(_as_array, (high, low, word))
    first = _mix(_wrapped(high + word))
    return first, _mix(low ^ first)


class Draws:
    """A sequence of draws, a function of a few words; each call takes those that follow.

    Words that are arrays must have one shape: draws then have it too.
    """

    def __init__(self, *parts: Word):
        self._parts, self._taken = parts, 0

    @functools.cached_property
    def _key(self) -> tuple[Word, Word]:
        return functools.reduce(fold, self._parts, _START)  # made where something is drawn

    def bits(self, count: int = 0) -> Word:
        """Draws a word of 32 bits, or `count` of them as an array."""
        number = np.arange(self._taken, self._taken + count, dtype=np.uint32) if count else self._taken
        self._taken += count or 1
        return fold(self._key, number)[1]

    def integer(self, bound: int, count: int = 0) -> Word:
        """Draws from 0 … bound - 1, as int32 in arrays; some are likelier than others by bound / 2**32 at most."""
        drawn = self.bits(count) % bound
        return drawn if isinstance(drawn, int) else drawn.astype(np.int32)

    def fine(self, count: int = 0) -> Word:
        """Draws from 0 … 2**24 - 1, to be compared with `threshold`."""
        return self.bits(count) >> (32 - _FINE)

    def chance(self, p: float) -> bool | np.ndarray:
        """Draws True with probability p."""
        return self.fine() < threshold(p)

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float | np.ndarray:
        """Draws from [low, high): a multiple of 2**-24 (float32 in arrays), scaled."""
        fine = self.fine()
        share = (fine if isinstance(fine, int) else fine.astype(np.float32)) * 2.0**-_FINE
        return low + (high - low) * share

    def generator(self) -> np.random.Generator:
        """Seeds a generator of numpy by two draws, for other distributions, on the host alone."""
        return np.random.default_rng([self.bits(), self.bits()])


def threshold(p: float) -> int:
    """Says below which number `Draws.fine` is with probability p, rounded up to multiples of 2**-24."""
    return math.ceil(p * 2**_FINE)


def permutation(length: int, *parts: int) -> np.ndarray:
    """Orders 0 … length - 1 by the draws of each: a permutation that is a function of a few words."""
    high, low = fold(functools.reduce(fold, parts, _START), np.arange(length, dtype=np.uint32))
    return np.argsort((low.astype(np.uint64) << np.uint64(32)) | high, kind="stable")  # high alone has half the key


def _mix(word: Word) -> Word:
    """Permutes words so that each bit of the result depends on all bits (constants: C. Wellons, hash prospector)."""
    word = _wrapped((word ^ (word >> 16)) * 0x21F0AAAD)
    word = _wrapped((word ^ (word >> 15)) * 0x735A2D97)
    return word ^ (word >> 15)


def _wrapped(word: Word) -> Word:
    return word & _WORD if isinstance(word, int) else word  # arrays of uint32 wrap by themselves


def _as_array(word: Word) -> Word:
    return np.uint32(word & _WORD) if isinstance(word, int) else word.astype(np.uint32)
