"""The input of the pairwise family's Pallas kernels, and the scores of a tile without a (queries, keys, units) array.

`ByUnits` is for few weights: it holds one (rows, keys) array for each hidden unit and mixes them with scalars.
`ByRows` is for many weights: it holds one (units, keys) array for each query and mixes units in matrix products.
Both take the gradient with `jax.vjp`, so that any activation works and scores are defined once.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS

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
        """Returns the shapes of the arrays in `Weights`."""
        layers = zip(self.units, self.units[1:], self.biased, strict=False)
        mixing = [shape for m, k, bias in layers for shape in ((k, m), (k, 1))[: 1 + bias]]
        return [*mixing, (self.units[-1], 1)]

    @property
    def size(self) -> int:
        """Returns the number of weights."""
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


class Operands(NamedTuple):
    """The arrays that have gradients; T' and S' are lengths padded to whole tiles.

    Attributes:
      query: a, `(B, N, T', M)`.
      key: b, `(B, N, M, S')`.
      value: `(B, N, S', V)`.
      weights: See `pair_tile.Weights`, with a leading axis of size N, or 1 if heads share them.
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


def tiles_before(position, size: int):
    """Returns the number of whole tiles before a position; 0 if it is negative."""
    return jax.lax.div(jnp.maximum(position, 0), jnp.int32(size))


def columns(x: jax.Array) -> list[jax.Array]:
    """Returns `(R, C)` as C arrays `(R, 1)`."""
    return [x[:, c : c + 1] for c in range(x.shape[1])]


def join(parts: Sequence[jax.Array], axis: int) -> jax.Array:
    """Joins arrays of size 1 along the axis, by selection, which needs no shifts within a register."""
    shape = tuple(len(parts) if d == axis else size for d, size in enumerate(parts[0].shape))
    index = jax.lax.broadcasted_iota(jnp.int32, shape, axis)
    zero = jnp.zeros(shape, parts[0].dtype)
    return functools.reduce(lambda x, numbered: jnp.where(index == numbered[0], numbered[1], x), enumerate(parts), zero)


@dataclasses.dataclass(frozen=True)
class ByUnits:
    """Strips of 8 queries, one (8, keys) array for each unit.

    Keys and weights are spread over a strip before the loop over strips, so that their gradients are sums of whole
    arrays within it.
    """

    network: Network
    rows: int = 8

    def spread_keys(self, keys: jax.Array) -> list[jax.Array]:
        """Returns `(M, C)` as M arrays of a strip's shape."""
        return [jnp.broadcast_to(keys[m : m + 1], (self.rows, keys.shape[1])) for m in range(len(keys))]

    def spread_weights(self, weights: Weights, keys: int) -> list[jax.Array]:
        """Returns one array of a strip's shape for each weight."""
        scalars = [w[r : r + 1, c : c + 1] for w in weights for r in range(w.shape[0]) for c in range(w.shape[1])]
        return [jnp.broadcast_to(scalar, (self.rows, keys)) for scalar in scalars]

    def gather_keys(self, gradients: list[jax.Array]) -> jax.Array:
        """Returns the gradients of `spread_keys` as `(M, C)`."""
        return join([jnp.sum(x, axis=0, keepdims=True) for x in gradients], 0)

    def gather_weights(self, gradients: list[jax.Array]) -> list[jax.Array]:
        """Returns the gradients of `spread_weights` as one `(P, C)`, to be summed along C."""
        return [join([jnp.sum(x, axis=0, keepdims=True) for x in gradients], 0)]

    def gradient_shapes(self, keys: int) -> list[tuple[int, int]]:
        """Returns the shapes of the result of `gather_weights`."""
        return [(self.network.size, keys)]

    def weight_gradients(self, sums: list[jax.Array]) -> list[jax.Array]:
        """Returns the gradients `(..., *shape)` from results of `gather_weights` summed over tiles, `(..., P, C)`."""
        flat, start, gradients = sums[0].sum(-1), 0, []
        for rows, width in self.network.shapes:
            stop = start + rows * width
            gradients.append(flat[..., start:stop].reshape(*flat.shape[:-1], rows, width))
            start = stop
        return gradients

    def split_queries(self, queries: jax.Array) -> list[jax.Array]:
        """Returns a strip `(R, M)` as M arrays `(R, 1)`."""
        return columns(queries)

    def join_queries(self, gradients: list[jax.Array]) -> jax.Array:
        """Returns the gradients of `split_queries` as `(R, M)`."""
        return join(gradients, 1)

    def scores(self, queries: list[jax.Array], keys: list[jax.Array], weights: list[jax.Array]) -> jax.Array:
        """Returns the scores `(R, C)` of a strip."""
        return unit_scores(self.network, queries, keys, weights)


def unit_scores(network: Network, queries: Sequence, keys: Sequence, weights: Sequence) -> jax.Array:
    """Returns scores from arrays that broadcast: one for each unit of queries and of keys, and one for each weight."""
    activation, weights = IN_KERNELS[network.activation], iter(weights)
    hidden = [activation(a + b) for a, b in zip(queries, keys, strict=True)]
    for width, biased in zip(network.units[1:], network.biased, strict=True):
        mixed = [_sum([next(weights) * h for h in hidden]) for _ in range(width)]
        hidden = [activation(x + next(weights) if biased else x) for x in mixed]
    return _sum([next(weights) * h for h in hidden])


def _sum(terms: list[jax.Array]) -> jax.Array:
    return functools.reduce(jnp.add, terms)


@dataclasses.dataclass(frozen=True)
class ByRows:
    """Strips of 8 queries, one (units, keys) array for each query."""

    network: Network
    rows: int = 8

    def spread_keys(self, keys: jax.Array) -> jax.Array:
        """Returns `(M, C)` unchanged."""
        return keys

    def spread_weights(self, weights: Weights, keys: int) -> list[jax.Array]:
        """Returns the weights unchanged."""
        return list(weights)

    gather_keys = spread_keys

    def gather_weights(self, gradients: list[jax.Array]) -> list[jax.Array]:
        """Returns the gradients unchanged."""
        return gradients

    def gradient_shapes(self, keys: int) -> list[tuple[int, int]]:
        """Returns the shapes of the result of `gather_weights`."""
        return self.network.shapes

    weight_gradients = gather_weights

    def split_queries(self, queries: jax.Array) -> list[jax.Array]:
        """Returns a strip `(R, M)` as R arrays `(M, 1)`."""
        return columns(queries.T)

    def join_queries(self, gradients: list[jax.Array]) -> jax.Array:
        """Returns the gradients of `split_queries` as `(R, M)`."""
        return join(gradients, 1).T

    def scores(self, queries: list[jax.Array], keys: jax.Array, weights: list[jax.Array]) -> jax.Array:
        """Returns the scores `(R, C)` of a strip."""
        return join([self._row(query, keys, weights) for query in queries], 0)

    def _row(self, query: jax.Array, keys: jax.Array, weights: list[jax.Array]) -> jax.Array:
        """Returns the scores `(1, C)` of one query `(M, 1)`."""
        activation, weights = IN_KERNELS[self.network.activation], iter(weights)
        hidden = activation(query + keys)
        for biased in self.network.biased:
            hidden = jnp.dot(next(weights), hidden, precision=jax.lax.Precision.HIGHEST)
            hidden = activation(hidden + next(weights) if biased else hidden)
        return jnp.sum(next(weights) * hidden, axis=0, keepdims=True)


FEW = 32  # the most weights that are spread one by one


def form_of(network: Network) -> ByUnits | ByRows:
    """Returns the form that suits the number of weights."""
    return ByUnits(network) if network.size <= FEW else ByRows(network)
