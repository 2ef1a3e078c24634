"""The input of the pairwise family's Pallas kernels, and scores from one array for each unit."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.dropout import keep_columns, words_of
from attention.mask import Bounds, keys_in_sight, queries_in_sight

# Mosaic GPU does not support custom derivatives, which `jax.nn.relu` has.
IN_KERNELS = ACTIVATIONS | {"relu": lambda x: jnp.where(x <= 0, jnp.zeros((), x.dtype), x)}


Weights = Sequence[jax.Array]  # kernel (M', M) of each layer and bias (M', 1) where it has one, then the vector (M', 1)


@dataclasses.dataclass(frozen=True)
class Network:
    """The layers of the MLP after a_i + b_j.

    Attributes:
      units: Width of each layer; the first is the width of a_i + b_j.
      biased: For each layer after the first, whether it has a bias.
      activation: Name of the activation.
    """

    units: tuple[int, ...]
    biased: tuple[bool, ...]
    activation: str

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """The shapes of the arrays in `Weights`."""
        layers = zip(self.units, self.units[1:], self.biased, strict=False)
        mixing = [shape for m, k, bias in layers for shape in ((k, m), (k, 1))[: 1 + bias]]
        return [*mixing, (self.units[-1], 1)]

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(rows * columns for rows, columns in self.shapes)


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """The static part of a kernel, known when it is compiled.

    Attributes:
      network: The MLP on each pair.
      queries: T.
      keys: S.
      block: Queries and keys of a tile.
      causal: See `Mask`.
      window: See `Mask`.
      limited: Whether the array of keys ends in padding.
      rate: Rate of dropout.
      platform: `tpu`, `gpu` or `interpret`.
      rounded: Whether matrix products may round their factors to bfloat16, as those of bfloat16 models do.
    """

    network: Network
    queries: int
    keys: int
    block: tuple[int, int]
    causal: bool
    window: int
    limited: bool
    rate: float
    platform: str
    rounded: bool = False


class Operands(NamedTuple):
    """The arrays that have gradients; T' and S' are lengths padded to whole tiles.

    Attributes:
      query: a, `(B, N, T', M)`.
      key: b, `(B, N, M, S')`.
      value: `(B, N, S', V)`.
      weights: See `Weights`, with a leading axis of size N, or 1 if heads share them.
      bias: `(B, N, T', S')` or None; an axis of size 1 is shared.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    weights: tuple[jax.Array, ...]
    bias: jax.Array | None


class Fixed(NamedTuple):
    """The arrays that have no gradients.

    Attributes:
      dense: int8 `(B, N, T', S')` or None; an axis of size 1 is shared.
      query_segments: `(B, T', 1)` or None.
      key_segments: `(B, 1, S')` or None.
      offset: The mask's query offset `(1,)`.
      lengths: Number of real keys `(B,)`.
      seed: Seed of dropout `(2,)`.
      sequence: Index among the sequences and heads of all devices, `(B, N)`.
    """

    dense: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    offset: jax.Array
    lengths: jax.Array
    seed: jax.Array
    sequence: jax.Array


def _tile_of(position: Any, size: int) -> jax.Array:
    """Finds the tile that holds a position; 0 if the position is negative."""
    return jax.lax.div(jnp.maximum(position, 0), jnp.int32(size))


def tiles_of_keys(plan: PairPlan, first: Any, rows: int, offset: Any, length: Any, size: int) -> tuple[Any, Any]:
    """Finds the first and the last tile of keys that some of `rows` queries see; there are none if last < first.

    Queries are numbered from the mask's offset on, `length` is the number of real keys, and `size` the keys of a tile.
    """
    bounds = keys_in_sight(offset + first, rows, plan.causal, plan.window)
    first, last = _tiles(bounds, size, -(-plan.keys // size))
    return first, jnp.minimum(last, _tile_of(length - 1, size)) if plan.limited else last


def tiles_of_queries(plan: PairPlan, first: Any, rows: int, offset: Any, size: int) -> tuple[Any, Any]:
    """Finds the first and the last tile of queries that see some of `rows` keys; see `tiles_of_keys`."""
    return _tiles(queries_in_sight(first - offset, rows, plan.causal, plan.window), size, -(-plan.queries // size))


def _tiles(bounds: Bounds, size: int, count: int) -> tuple[Any, Any]:
    first, last = (None if position is None else _tile_of(position, size) for position in bounds)
    end = jnp.int32(count - 1)
    return jnp.int32(0) if first is None else first, end if last is None else jnp.minimum(end, last)


def kept(plan: PairPlan, seed: tuple[Any, Any], sequence: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """Tells which weights dropout keeps, as `attention.dropout.keep` does, by the numbers of queries and keys."""
    row = sequence * jnp.uint32(plan.queries) + query.astype(jnp.uint32)
    return keep_columns(words_of(seed, row), key.astype(jnp.uint32), plan.rate)


def unit_scores(
    network: Network, rows: Sequence, across: Sequence, weights: Sequence, activation: Callable | None = None
) -> jax.Array:
    """Computes scores from arrays that broadcast: one for each unit of rows and of columns, and one for each weight."""
    activation, weights = activation or IN_KERNELS[network.activation], iter(weights)
    hidden = [activation(a + b) for a, b in zip(rows, across, strict=True)]
    for width, biased in zip(network.units[1:], network.biased, strict=True):
        mixed = [_sum([next(weights) * h for h in hidden]) for _ in range(width)]
        hidden = [activation(x + next(weights) if biased else x) for x in mixed]
    return _sum([next(weights) * h for h in hidden])


def _sum(terms: list[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)
