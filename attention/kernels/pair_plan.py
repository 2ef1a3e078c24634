"""The input of the pairwise family's Pallas kernels."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.kernels.pair_tile import Network


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
