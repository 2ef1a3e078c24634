"""Normalisers: how the scores of a query become the weights of the values.

A normaliser weighs all keys at once (`weigh`), or tile by tile: `add` takes the scores of one tile after another and
returns unfinished weights, `finish` gives the divisor of their sums and one number for each row, from which `weights`
gives the finished weights again, with the gradient of the scores. Masked scores are `masked`, whose weight is 0.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention import specs
from attention.mask import choose_blocks, in_blocks, keys_of_blocks
from attention.parameters import Parameter, Params, Sizes, lift
from attention.types import Checked, Count

State = tuple[jax.Array, ...]
Added = tuple[State, jax.Array | None, jax.Array]
Reduce = Callable[[Callable, jax.Array], jax.Array]


def reduce_last(function: Callable, x: jax.Array) -> jax.Array:
    """Reduces the last axis, which stays as 1, by a function such as `jnp.sum`."""
    return function(x, -1, keepdims=True)


@dataclasses.dataclass(frozen=True)
class Normaliser(Checked):
    """Base: weights that are a function of each score alone.

    Attributes:
      shift_invariant: Whether a number added to all scores of a row changes nothing, so that it may be left out.
      in_tiles: Whether it is computed in tiles too.
      counts: Whether it needs the number of keys that a query may attend to.
      lowest: Whether the lowest score has the weight 0; otherwise the score 0 has it.
      random: Whether a random key chooses the weights in training.
      flops: Operations on each score.
    """

    shift_invariant: ClassVar[bool] = False
    in_tiles: ClassVar[bool] = True
    counts: ClassVar[bool] = False
    lowest: ClassVar[bool] = True
    random: ClassVar[bool] = False
    flops: ClassVar[int] = 1

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the learnable arrays by name, each with N numbers."""
        return {}

    def masked(self, dtype: Any) -> float:
        """Gives the score of a masked pair, whose weight is 0."""
        return float(jnp.finfo(dtype).min) if self.lowest else 0.0

    def weigh(self, params: Params, scores: jax.Array, allowed: jax.Array | None, key: Any = None) -> jax.Array:
        """Computes the weights `(*B, N, T, S)`; `allowed` broadcasts to the scores; elsewhere weights are 0."""
        if allowed is not None:
            scores = jnp.where(allowed, scores, self.masked(scores.dtype))
        count = count_keys(allowed, scores.shape, scores.dtype) if self.counts else jnp.ones((), scores.dtype)
        own = self.parameters(Sizes(1, 1, 1, 1))
        by_row = {name: lift(params[name][:, None, None], scores.ndim) for name in own}
        before = self.start(by_row, (*scores.shape[:-1], 1), count, scores.dtype)
        after, _, weights = self.add(before, scores, True)
        return weights / self.finish(after)[0]

    def weight(self, scores: jax.Array, count: jax.Array) -> jax.Array:
        """Weighs each score, given the number of keys that the query may attend to."""
        raise NotImplementedError

    def start(self, params: Params, shape: tuple[int, ...], count: jax.Array, dtype: Any) -> State:
        """Gives the state before any tile, of arrays `shape`; params have been spread to it."""
        return (count,)

    def add(self, state: State, scores: jax.Array, first: bool, reduce: Reduce = reduce_last) -> Added:
        """Adds a tile; gives the state, the factor of sums before (None is 1), and the tile's unfinished weights.

        `reduce` calls `jnp.sum` or `jnp.max` on rows, and keeps their axis as 1.
        """
        return state, None, self.weight(scores, *state)

    def finish(self, state: State) -> tuple[jax.Array | float, jax.Array]:
        """Gives the divisor of sums of unfinished weights, and the number for each row that `weights` needs."""
        return 1.0, state[0]

    @property
    def further(self) -> "Normaliser":
        """The normaliser of further keys, whose state is merged with that of the first."""
        return self

    def merge(self, state: State, further: State) -> tuple[State, jax.Array | float, jax.Array | float]:
        """Merges the states of the first and of further keys, and gives the factors of both their sums."""
        return state, 1.0, 1.0

    def weights(self, scores: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
        """Computes finished weights, and the function from `through` (the gradient of the weights) and `through_sum`
        (its sum times the weights over the row) to the gradient of the scores.
        """
        weights, pull = jax.vjp(lambda s: self.weight(s, row), scores)
        return weights, lambda through, through_sum: pull(through.astype(weights.dtype))[0]

    def parameter_gradients(self, params: Params, row: jax.Array, through_sum: jax.Array) -> Params:
        """Computes the gradients, at each row, of params that have been spread to the rows."""
        return {}


def count_keys(allowed: jax.Array | None, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Counts the keys that each query may attend to, at least 1, for scores of this shape."""
    if allowed is None:
        return jnp.full((1,) * len(shape), shape[-1], dtype)
    allowed = jnp.broadcast_to(allowed, (*allowed.shape[:-1], shape[-1]))
    return jnp.maximum(allowed.sum(-1, keepdims=True), 1).astype(dtype)


@dataclasses.dataclass(frozen=True)
class Softmax(Normaliser):
    """exp(s_ij) / Σ_j exp(s_ij), online in tiles (Milakov & Gimelshein 2018)."""

    shift_invariant = True
    flops = 4  # subtract the maximum, exponentiate, sum, divide

    def weigh(self, params: Params, scores: jax.Array, allowed: jax.Array | None, key: Any = None) -> jax.Array:
        """Computes the softmax over the allowed keys."""
        if allowed is None or not scores.size:  # a maximum of no keys is an error
            return jax.nn.softmax(scores, axis=-1)
        scores = jnp.where(allowed, scores, -jnp.inf)
        highest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
        exponentials = jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0.0))
        total = exponentials.sum(-1, keepdims=True)
        return exponentials / jnp.where(total > 0, total, 1.0)

    def start(self, params: Params, shape: tuple[int, ...], count: jax.Array, dtype: Any) -> State:
        """Starts from the highest score and the sum of exponentials."""
        half = jnp.finfo(dtype).min / 2  # relative to it, a row of masked scores has weights exp(lowest - half) = 0
        return jnp.full(shape, half, dtype), jnp.zeros(shape, dtype)

    def add(self, state: State, scores: jax.Array, first: bool, reduce: Reduce = reduce_last) -> Added:
        """Updates the maximum and the sum, and computes exponentials relative to that maximum."""
        before, total = state
        highest = jax.lax.stop_gradient(jnp.maximum(reduce(jnp.max, scores), before))
        weights = jnp.exp(scores - highest)
        if first:
            return (highest, reduce(jnp.sum, weights)), None, weights
        shrink = jnp.exp(before - highest)
        return (highest, total * shrink + reduce(jnp.sum, weights)), shrink, weights

    def merge(self, state: State, further: State) -> tuple[State, jax.Array | float, jax.Array | float]:
        """Merges the states, and gives the factors that refer both sums to the same maximum."""
        highest = jnp.maximum(state[0], further[0])
        first, second = jnp.exp(state[0] - highest), jnp.exp(further[0] - highest)
        return (highest, state[1] * first + further[1] * second), first, second

    def finish(self, state: State) -> tuple[jax.Array, jax.Array]:
        """Gives the sum, and the logarithm of the sum of exponentials."""
        total = _nonzero(state[1])
        return total, state[0] + jnp.log(total)

    def weights(self, scores: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
        """Computes exp(s − log-sum-exp)."""
        weights = jnp.exp(scores - row)
        return weights, lambda through, through_sum: weights * (through - through_sum)


@dataclasses.dataclass(frozen=True)
class Sink(Softmax):
    """exp(s_ij) / (exp(z) + Σ_j exp(s_ij)): a score z without a value, so a query may attend to nothing.

    z is 0 (Miller 2023, "Attention is off by one"), or learned for each head (GPT-OSS, arXiv:2508.10925).

    Attributes:
      learned: Whether z is learned, from 0 on.
    """

    learned: bool = False
    shift_invariant = False
    flops = 5

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares z for each head if it is learned."""
        return {"sink": Parameter((sizes.heads,), initializers.zeros, ("heads",))} if self.learned else {}

    weigh = Normaliser.weigh

    @property
    def further(self) -> Normaliser:
        """The softmax: there is one sink, which the first keys have."""
        return SOFTMAX

    def start(self, params: Params, shape: tuple[int, ...], count: jax.Array, dtype: Any) -> State:
        """Starts from z and 1, its own exponential relative to itself."""
        sink = params["sink"].astype(dtype) if self.learned else jnp.zeros((), dtype)
        return jnp.broadcast_to(sink, shape), jnp.ones(shape, dtype)

    def add(self, state: State, scores: jax.Array, first: bool, reduce: Reduce = reduce_last) -> Added:
        """Adds a tile; the first one too comes after the sink."""
        return super().add(state, scores, False, reduce)

    def parameter_gradients(self, params: Params, row: jax.Array, through_sum: jax.Array) -> Params:
        """Computes −w_z Σ_j w_ij ∂w_ij at each row: the sink takes weight from all keys."""
        return {"sink": -jnp.exp(params["sink"] - row) * through_sum} if self.learned else {}


@dataclasses.dataclass(frozen=True)
class Softpick(Softmax):
    """max(e^s_ij − 1, 0) / (Σ_j |e^s_ij − 1| + ε): scores below 0 have no weight, but take some from the others.

    It is the rectified softmax of Zuhri et al. 2025, arXiv:2504.20966, in the form of the published code, with its ε
    relative to the highest score, or to 0 where all are below.
    """

    epsilon: ClassVar[float] = 1e-8
    shift_invariant = False
    lowest = False
    flops = 7

    weigh = Normaliser.weigh

    def start(self, params: Params, shape: tuple[int, ...], count: jax.Array, dtype: Any) -> State:
        """Starts from the score 0, whose weight is 0, and an empty sum."""
        return jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)

    def add(self, state: State, scores: jax.Array, first: bool, reduce: Reduce = reduce_last) -> Added:
        """Updates the highest score and the sum of sizes, and computes what is rectified relative to that score."""
        highest = jax.lax.stop_gradient(jnp.maximum(reduce(jnp.max, scores), state[0]))
        lifted = jnp.exp(scores - highest) - jnp.exp(-highest)
        shrink = jnp.exp(state[0] - highest)
        total = state[1] * shrink + reduce(jnp.sum, jnp.abs(lifted))
        return (highest, total), None if first else shrink, jax.nn.relu(lifted)

    def finish(self, state: State) -> tuple[jax.Array, jax.Array]:
        """Gives the sum with ε, and its logarithm."""
        total = state[1] + self.epsilon
        return total, state[0] + jnp.log(total)

    def weights(self, scores: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
        """Rectifies exp(s − row) − exp(−row)."""
        share = jnp.exp(scores - row)

        def pull(through: jax.Array, through_sum: jax.Array) -> jax.Array:
            below = jnp.where(scores < 0, through_sum, 0)
            return share * jnp.where(scores > 0, through - through_sum, below)

        return jax.nn.relu(share - jnp.exp(-row)), pull


@dataclasses.dataclass(frozen=True)
class Sigmoid(Normaliser):
    """σ(s_ij − log n), n the number of keys that query i may attend to (Ramapuram et al. 2024, arXiv:2409.04431)."""

    counts = True
    flops = 4

    def weight(self, scores: jax.Array, count: jax.Array) -> jax.Array:
        """Computes the sigmoid of the shifted score."""
        return jax.nn.sigmoid(scores - jnp.log(count))


@dataclasses.dataclass(frozen=True)
class ReluSquared(Normaliser):
    """max(s_ij, 0)² / n, n the number of keys that query i may attend to (Hua et al. 2022; Wortsman et al. 2023)."""

    counts = True
    flops = 3

    def weight(self, scores: jax.Array, count: jax.Array) -> jax.Array:
        """Divides the squared positive part by the number of keys."""
        return jnp.square(jax.nn.relu(scores)) / count


@dataclasses.dataclass(frozen=True)
class Unnormalised(Normaliser):
    """s_ij itself."""

    lowest = False
    flops = 0

    def weight(self, scores: jax.Array, count: jax.Array) -> jax.Array:
        """Leaves the score unchanged."""
        return scores


@dataclasses.dataclass(frozen=True)
class Sum(Normaliser):
    """s_ij / Σ_j s_ij, for scores above 0; zeros where the sum is 0."""

    lowest = False
    flops = 2

    def start(self, params: Params, shape: tuple[int, ...], count: jax.Array, dtype: Any) -> State:
        """Starts from a sum of 0."""
        return (jnp.zeros(shape, dtype),)

    def add(self, state: State, scores: jax.Array, first: bool, reduce: Reduce = reduce_last) -> Added:
        """Adds the scores of a tile to the sum."""
        return (state[0] + reduce(jnp.sum, scores),), None, scores

    def merge(self, state: State, further: State) -> tuple[State, jax.Array | float, jax.Array | float]:
        """Adds both sums."""
        return (state[0] + further[0],), 1.0, 1.0

    def finish(self, state: State) -> tuple[jax.Array, jax.Array]:
        """Gives the sum twice: as the divisor and as the number of the row."""
        total = _nonzero(state[0])
        return total, total

    def weights(self, scores: jax.Array, row: jax.Array) -> tuple[jax.Array, Any]:
        """Divides the scores by the sum."""
        return scores / row, lambda through, through_sum: (through - through_sum) / row


@dataclasses.dataclass(frozen=True)
class Hard(Normaliser):
    """1 for one key and 0 for the others (hard attention, Xu et al. 2015; Wikipedia), with the gradient of the softmax.

    The key is the one with the highest score, or with `sampled` in training one drawn from the softmax
    (straight-through Gumbel-softmax at temperature 1: Jang et al. 2017).

    Attributes:
      sampled: Whether training draws the key; it needs a dropout key.
    """

    sampled: bool = False
    shift_invariant = True
    in_tiles = False
    flops = 4

    @property
    def random(self) -> bool:
        """Whether training draws the key."""
        return self.sampled

    def weigh(self, params: Params, scores: jax.Array, allowed: jax.Array | None, key: Any = None) -> jax.Array:
        """Computes the one-hot weights."""
        if self.sampled and key is not None:
            scores = scores + jax.random.gumbel(key, scores.shape, scores.dtype)
        soft = SOFTMAX.weigh(params, scores, allowed)
        best = jax.nn.one_hot(jnp.argmax(soft, -1), scores.shape[-1], dtype=soft.dtype)
        best = jnp.where(soft.sum(-1, keepdims=True) > 0, best, 0)
        return best + (soft - jax.lax.stop_gradient(soft))


@dataclasses.dataclass(frozen=True)
class StickBreaking(Normaliser):
    """σ(s_ij) Π_{l>j} (1 − σ(s_il)): the last key takes its part of a stick, then the one before it of what is left.

    It is the attention of Tan et al. 2024, 2410.17980, whose keys are those before the query's own; here they are those
    that the mask allows, in descending order.
    """

    in_tiles = False
    flops = 25

    def weigh(self, params: Params, scores: jax.Array, allowed: jax.Array | None, key: Any = None) -> jax.Array:
        """Computes the parts of the stick, as sums of logarithms."""
        left = jax.nn.log_sigmoid(-scores)
        left = left if allowed is None else jnp.where(allowed, left, 0)
        parts = jnp.exp(jax.nn.log_sigmoid(scores) + jax.lax.cumsum(left, left.ndim - 1, reverse=True) - left)
        return parts if allowed is None else jnp.where(allowed, parts, 0)


@dataclasses.dataclass(frozen=True)
class Blocks(Normaliser):
    """The softmax over the keys of some blocks, which each query chooses by the mean of their scores (MoBA).

    In Lu et al. 2025, arXiv:2502.13189, section 2.2, a query scores a block by its product with the mean key; for dot
    products that is the mean score. Of the keys that the mask allows, the block of the last is always chosen, which is
    the query's own block under a causal mask. The choice has no gradient.

    Attributes:
      size: The keys of a block.
      top: The blocks that a query chooses, with the one of its last key.
    """

    size: Count = 64
    top: Count = 3
    shift_invariant = True
    in_tiles = False
    flops = 6  # those of the softmax, and the means

    def weigh(self, params: Params, scores: jax.Array, allowed: jax.Array | None, key: Any = None) -> jax.Array:
        """Computes the softmax over the keys of the chosen blocks."""
        allowed = jnp.broadcast_to(True if allowed is None else allowed, scores.shape)
        count = in_blocks(allowed, self.size).sum(-1)
        means = in_blocks(jnp.where(allowed, scores, 0), self.size).sum(-1) / jnp.maximum(count, 1)
        chosen = keys_of_blocks(choose_blocks(means, count > 0, self.top), self.size, scores.shape[-1])
        return SOFTMAX.weigh(params, scores, allowed & chosen)


def _nonzero(total: jax.Array) -> jax.Array:
    return jnp.where(total == 0, 1, total)


SOFTMAX = Softmax()
NORMALISERS: dict[str, type[Normaliser]] = {
    "softmax": Softmax,
    "sink": Sink,
    "softpick": Softpick,
    "sigmoid": Sigmoid,
    "relu_squared": ReluSquared,
    "sum": Sum,
    "none": Unnormalised,
    "hard": Hard,
    "stick_breaking": StickBreaking,
    "blocks": Blocks,
}


@functools.cache
def normaliser_of(text: str) -> Normaliser:
    """Makes the normaliser that a string names, such as `sigmoid` or `sink(learned=True)`.

    Raises:
      UsageError: no normaliser has the name or the option.
    """
    return specs.make(text, NORMALISERS, "normaliser")
