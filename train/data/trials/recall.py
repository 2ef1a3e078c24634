"""Trials of recall: a sequence shows keys with their values, and later asks for the values."""

import dataclasses
from typing import Annotated, ClassVar

import numpy as np

from attention.errors import UsageError
from attention.types import Count, Rate, Sentinel, Share, Size, at_least
from train.data import draws
from train.data.draws import Draws, Word, threshold
from train.data.pipeline import Example
from train.data.trials.trial import Array, Trial, example, permuted, ranked

# Quantiles of an exponential variable: ranking such variables, each over its weight, draws without replacement.
_EXPONENTIAL = -np.log((np.arange(4096) + 0.5) / 4096).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class StackedRecall(Trial):
    """Pairs of a key and a value, both in one position; then every key alone, in another order, asks for its value.

    The size counts the pairs. One layer without any convolution can do it, since a pair is already in one place. Keys
    are distinct; values are drawn independently. `rewritten` keys are written again with another value, and the last
    one counts. Chance is 1/`values`; answering with any value shown gives about 1/size if that is more.

    Source: the stacked form of multi-query associative recall (Arora et al. 2023, https://arxiv.org/abs/2312.04927),
    with tokens instead of fixed vectors.
    """

    size: Count = 32
    keys: Count = 128
    values: Annotated[int, at_least(2)] = 64
    rewritten: Size = 0

    answers, channels = "values", 2

    def __post_init__(self):
        super().__post_init__()
        _check_keys(self)
        if self.rewritten > min((self.least or self.size), *self.tested, self.size):
            raise UsageError(f"rewritten={self.rewritten} is more than the least number of pairs; lower it.")

    @property
    def vocabulary(self) -> int:
        """The blank, keys and values."""
        return 1 + self.keys + self.values

    def length(self, size: int) -> int:
        """Counts a position for each pair, rewritten key and question."""
        return 2 * size + self.rewritten

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        keys, values = permuted(draw, self.keys)[:most], draw.integer(self.values, most)
        again, shifts = permuted(draw, most, size)[: self.rewritten], draw.integer(self.values - 1, self.rewritten or 1)
        asked = permuted(draw, most, size)
        xp = draws.namespace(values)
        new = (values[again] + 1 + shifts[: self.rewritten]) % self.values
        last = _put(values, again, new)
        written = size + self.rewritten
        place = xp.arange(self.length(most))
        first, second = place < size, (place >= size) & (place < written)
        question = (place >= written) & (place < written + size)
        pair = xp.where(first, place, 0)
        if self.rewritten:
            pair = xp.where(second, again[xp.clip(place - size, 0, self.rewritten - 1)], pair)
        pair = xp.where(question, asked[xp.clip(place - written, 0, most - 1)], pair)
        value = xp.where(first, values[pair], last[pair])
        key_tokens = xp.where(first | second | question, 1 + keys[pair], 0)
        value_tokens = xp.where(first | second, 1 + self.keys + value, 0)
        return example(xp.stack([key_tokens, value_tokens], 1), 1 + self.keys + last[pair], question)


@dataclasses.dataclass(frozen=True)
class Recall(Trial):
    """Multi-query associative recall: keys, each followed by its value, then keys that ask, among filler tokens.

    The size counts the pairs. A question is a key in one of the two-position slots after the pairs; the probability of
    slot j is proportional to (j + 1)^(`power` - 1), so that gaps follow a power law. The sequence has `context` tokens,
    or 4 per pair if that is more. Chance is 1/`values`; answering with any value shown gives about 1/size if that is
    more.

    Source: Arora et al. 2023, https://arxiv.org/abs/2312.04927, section 4. There, fillers can be real keys that ask for
    nothing; here they have tokens of their own.
    """

    size: Count = 8
    keys: Count = 64
    values: Annotated[int, at_least(2)] = 64
    fillers: Count = 64
    context: Annotated[Count, Sentinel(0, "4 per pair")] = 64
    power: Share = 0.01

    answers = "values"

    def __post_init__(self):
        super().__post_init__()
        _check_keys(self)

    @property
    def vocabulary(self) -> int:
        """Keys, values and fillers."""
        return self.keys + self.values + self.fillers

    def length(self, size: int) -> int:  # an even number
        return max(self.context + self.context % 2, 4 * size)

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        length = self.length(most)
        keys, values = permuted(draw, self.keys)[:most], draw.integer(self.values, most)
        own_length = draws.namespace(values).maximum(self.length(1), 4 * size)
        slots = self._slots(draw, own_length // 2 - size, length)[:most]
        asked, filler = permuted(draw, most, size), draw.integer(self.fillers, length)
        xp = draws.namespace(values)
        place, pair = xp.arange(length), xp.arange(most)
        shown = place < 2 * size
        pair_at = xp.clip(place // 2, 0, most - 1)
        written = xp.where(place % 2 == 0, keys[pair_at], self.keys + values[pair_at])
        # The question of a pair beyond the size goes past the end, and is cut off.
        at = xp.where(pair < size, 2 * size + 2 * slots, length)
        question = _put(xp.full(length + 1, -1, np.int32), at, asked.astype(np.int32))[:length]
        answer = xp.clip(question, 0, most - 1)
        rest = xp.where(question >= 0, keys[answer], self.keys + self.values + filler)
        tokens = xp.where(place < own_length, xp.where(shown, written, rest), 0)
        return example(tokens, self.keys + values[answer], question >= 0)

    def _slots(self, draw: Draws, there: Word, length: int) -> Array:
        """Ranks the slots that are there by a race: the first ones are drawn by weight, without replacement."""
        count = length // 2
        weights = (np.arange(1, count + 1) ** (self.power - 1.0)).astype(np.float32)
        bits = draw.bits(count) >> 20
        xp = draws.namespace(bits)
        times = xp.asarray(_EXPONENTIAL)[bits] * xp.asarray(1 / weights)
        return ranked(xp.where(xp.arange(count) < there, times, np.float32(np.inf)))


@dataclasses.dataclass(frozen=True)
class InContextRecall(Trial):
    """Keys, each followed by its value, drawn with replacement; a key that occurred before asks for its value.

    The size counts the pairs, of two tokens each. Every sequence maps keys to values anew. `noise` is the share of
    pairs of another alphabet: noisy recall. Chance is 1/`values`; the commonest value so far does better.

    Source: in-context and noisy recall of Poli et al. 2024 (MAD), https://arxiv.org/abs/2403.17844, appendix B: 64
    pairs of 8 keys and 8 values, and noise 0.2 with 16 tokens.
    """

    size: Count = 64
    keys: Count = 8
    values: Annotated[int, at_least(2)] = 8
    noise: Rate = 0.0
    noises: Count = 16

    answers, positions, smallest = "values", 2, 2

    @property
    def vocabulary(self) -> int:
        """Keys, values, and the tokens of noise if there is some."""
        return self.keys + self.values + (self.noises if self.noise else 0)

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        keys, value_of = draw.integer(self.keys, most), draw.integer(self.values, self.keys)
        noisy, noise = draw.fine(most) < threshold(self.noise), draw.integer(self.noises, 2 * most)
        xp = draws.namespace(keys)
        pair = xp.arange(most)
        real = ~noisy & (pair < size)
        before, _ = _seen(keys[:, None], real)
        tokens = xp.stack([keys, self.keys + value_of[keys]], 1).reshape(-1)
        if self.noise:
            tokens = xp.where(xp.repeat(real, 2), tokens, self.keys + self.values + noise)
        tokens = xp.where(xp.repeat(pair < size, 2), tokens, 0)
        answers = xp.stack([before & real, xp.zeros_like(real)], 1).reshape(-1)
        return example(tokens, xp.repeat(self.keys + value_of[keys], 2), answers)


@dataclasses.dataclass(frozen=True)
class FuzzyRecall(Trial):
    """Recall of keys and values of one to three tokens: a key that occurred before asks for all tokens of its value.

    The size counts the pairs. A sequence has `motifs` keys of distinct tokens, each with a value; pairs are drawn from
    them with replacement. A sign between key and value marks the key's end. Chance is 1/`symbols`.

    Source: fuzzy recall of Poli et al. 2024 (MAD), https://arxiv.org/abs/2403.17844, appendix B. Without a sign
    there, the end of a key that begins another cannot be known; and keys are drawn from all possible ones, so that few
    occur twice.
    """

    size: Count = 18
    symbols: Annotated[int, at_least(3)] = 7
    motifs: Count = 8

    longest: ClassVar[int] = 3  # the most tokens of a key or a value
    answers, positions, smallest = "symbols", 7, 2  # positions of the longest pair with its sign

    @property
    def vocabulary(self) -> int:
        """The blank, the sign, and the tokens of keys and values."""
        return 2 + 2 * self.symbols

    def example(self, draw: Draws, size: Word, most: int) -> Example:
        keys, key_sizes = self._motifs(draw)
        values, value_sizes = self._motifs(draw)
        motif = draw.integer(self.motifs, most)
        xp = draws.namespace(motif)
        read = xp.where(xp.arange(self.longest)[None] < key_sizes[:, None], keys + 1, 0)
        seen, first = _seen(read[motif], xp.arange(most) < size)
        value_of = motif[first]  # two motifs may share a key; the first to occur gives its value
        sizes = xp.where(xp.arange(most) < size, key_sizes[motif] + 1 + value_sizes[value_of], 0)
        ends = xp.cumsum(sizes)
        place = xp.arange(self.length(most))
        pair = xp.clip(xp.searchsorted(ends, place, side="right"), 0, most - 1)
        inside = place - (ends[pair] - sizes[pair])
        in_key = key_sizes[motif[pair]]
        there = place < ends[-1]
        nth = xp.clip(inside - in_key - 1, 0, self.longest - 1)
        value_token = 2 + self.symbols + values[value_of[pair], nth]
        key_token = 2 + keys[motif[pair], xp.clip(inside, 0, self.longest - 1)]
        tokens = xp.where(inside < in_key, key_token, xp.where(inside == in_key, 1, value_token))
        tokens = xp.where(there, tokens, 0)
        following = xp.concatenate([tokens[1:], tokens[:1]])
        asks = there & (inside >= in_key) & (inside < sizes[pair] - 1) & seen[pair]
        return example(tokens, following, asks)

    def _motifs(self, draw: Draws) -> tuple[Array, Array]:
        """Draws motifs of distinct tokens, `(motifs, longest)`, and their lengths."""
        bits = draw.bits(self.motifs * self.symbols).reshape(self.motifs, self.symbols)
        xp = draws.namespace(bits)
        return xp.argsort(bits, axis=1, stable=True)[:, : self.longest], 1 + draw.integer(self.longest, self.motifs)


def _check_keys(trial: StackedRecall | Recall) -> None:
    if max(trial.size, *trial.tested, 0) > trial.keys:
        raise UsageError(f"keys={trial.keys} are fewer than the pairs of the longest sequence; give more.")


def _put(array: Array, at: Array, values: Array) -> Array:
    """Copies an array with new values at some places."""
    if draws.namespace(array) is np:
        array = array.copy()
        array[at] = values
        return array
    return array.at[at].set(values)


def _seen(keys: Array, real: Array) -> tuple[Array, Array]:
    """Tells whether each of the keys, `(n, tokens)`, occurred before among real ones, and where it did first."""
    xp = draws.namespace(keys)
    same = xp.all(keys[:, None] == keys[None], axis=-1) & real[None]
    earlier = xp.tril(xp.ones(same.shape, bool), -1)
    return xp.any(same & earlier, axis=1), xp.argmax(same, axis=1)
