"""The mathematics of a tile, without loops and references: one step of a pass over tiles, forward and backward.

Forward: masked scores, the normaliser's unfinished weights, dropout, weights times values, with the sums before scaled
to the new state (Milakov & Gimelshein 2018). Backward: weights made again from one number for each row, and the
gradient of the scores (Dao et al. 2022). The machines decide which tiles are visited and where memory lies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention.normaliser import Normaliser, Reduce, reduce_last


class Carry(NamedTuple):
    """What a pass keeps of the tiles before.

    Attributes:
      state: The normaliser's state of each row.
      out: The sums of values by unfinished weights; None before the first tile.
    """

    state: Any
    out: jax.Array | None


def step(
    normaliser: Normaliser,
    carry: Carry,
    scores: jax.Array,
    kept: jax.Array | None,
    add: Callable,
    reduce: Reduce = reduce_last,
) -> Carry:
    """Adds a tile of masked scores.

    Args:
      normaliser: How scores become weights.
      carry: The tiles before; without sums this is the first and only one.
      scores: The masked scores `(..., R, C)`.
      kept: Which weights dropout keeps; None keeps all.
      add: From weights to their products with the values.
      reduce: Reduces rows, see `Normaliser.add`.
    """
    state, shrink, weights = normaliser.add(carry.state, scores, carry.out is None, reduce)
    if kept is not None:
        weights = jnp.where(kept, weights, 0)
    if carry.out is None:
        return Carry(state, add(weights))
    return Carry(state, (carry.out if shrink is None else carry.out * shrink) + add(weights))


def finish(normaliser: Normaliser, carry: Carry, rate: float) -> tuple[jax.Array, jax.Array]:
    """Divides the sums; also gives the number for each row from which weights are made again."""
    divisor, row = normaliser.finish(carry.state)
    return carry.out / (divisor * (1 - rate)), row


def step_grad(
    normaliser: Normaliser,
    scores: jax.Array,
    allowed: jax.Array | None,
    kept: jax.Array | None,
    row: jax.Array,
    through: jax.Array,
    through_sum: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Gives the weights after dropout, and the gradient of the scores.

    Args:
      normaliser: How scores become weights.
      allowed: The mask; None allows all.
      kept: Which weights dropout keeps; None keeps all.
      row: What `finish` gave for each row.
      through: The products of the output's gradient and the values, over the rate that is kept.
      through_sum: The sum of the output's gradient times the output, for each row.
    """
    weights, pull = normaliser.weights(scores, row)
    dropped = weights
    if kept is not None:
        dropped, through = jnp.where(kept, weights, 0), jnp.where(kept, through, 0)
    d_scores = pull(through, through_sum)
    if not normaliser.lowest and allowed is not None:
        d_scores = jnp.where(allowed, d_scores, 0)
    return dropped, d_scores
