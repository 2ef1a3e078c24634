"""What the pairwise family's Pallas kernels are given."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention.kernels.pair_tile import Network


@dataclasses.dataclass(frozen=True)
class PairPlan:
    """What a kernel is compiled for.

    Attributes:
      network: The MLP on each pair.
      queries: T.
      keys: S.
      block: Queries and keys of a tile.
      causal: As in `Mask`.
      window: As in `Mask`.
      limited: Whether keys end before their array does.
      rate: Of dropout.
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
    """What has gradients; T' and S' are lengths padded to whole tiles.

    Attributes:
      query: a, `(B, N, T', M)`.
      key: b, `(B, N, M, S')`.
      value: `(B, N, S', V)`.
      weights: As `pair_tile.Weights` with a leading axis of size N, or 1 where heads share them.
      bias: `(B, N, T', S')` or None; an axis of size 1 is shared.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array
    weights: tuple[jax.Array, ...]
    bias: jax.Array | None


class Fixed(NamedTuple):
    """What has none.

    Attributes:
      dense: int8 `(B, N, T', S')` or None; an axis of size 1 is shared.
      query_segments: `(B, T', 1)` or None.
      key_segments: `(B, 1, S')` or None.
      offset: The mask's query offset `(1,)`.
      lengths: Keys that are real `(B,)`.
      seed: Of dropout, `(2,)`.
      sequence: Which of all devices' sequences and heads this is, `(B, N)`.
    """

    dense: jax.Array | None
    query_segments: jax.Array | None
    key_segments: jax.Array | None
    offset: jax.Array
    lengths: jax.Array
    seed: jax.Array
    sequence: jax.Array


def tiles_before(position, size: int):
    """Whole tiles of a size before a position; none before what is below 0."""
    return jax.lax.div(jnp.maximum(position, 0), jnp.int32(size))
