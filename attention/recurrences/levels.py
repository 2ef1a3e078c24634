"""States of blocks of 1, 1, 2, 4, … tokens, a Fenwick tree, and what queries read from them chunk by chunk.

For the query at position i, the key at j is at level l = the number of bits of i xor j: level 0 is the key of its own
token, and level l a block of 2^(l−1) tokens. The last level has all older ones. Blocks join as positions grow: what is
at level l for the query at p is at the greater of l and the level of p for each later query.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.parameters import lift
from attention.recurrences import state as chunks
from attention.recurrences.state import Passage, Writes


def level(query: jax.Array, key: jax.Array, levels: int) -> jax.Array:
    """Computes the level of keys for queries, by their positions."""
    return jnp.minimum(32 - jax.lax.clz(query ^ key), levels - 1)


def wrapped(place: jax.Array, levels: int) -> jax.Array:
    """Reduces the next token's position to what matters: how often 2 divides it, up to the last level."""
    return place % 2 ** max(levels - 2, 0)


def joined(states: jax.Array, at: jax.Array, kept: jax.Array) -> jax.Array:
    """Fades the states `(*B, levels, V, H)`, and moves those below a level to it; both numbers are `(*B, 1)`."""
    every = lift(np.arange(states.shape[-3]), at.ndim)
    below = kept * (every <= at)
    total = jnp.einsum("...l,...lvh->...vh", below, states)[..., None, :, :]
    return (kept - below)[..., None, None] * states + (every == at)[..., None, None] * total


def from_levels(
    writes: Writes, weights: jax.Array, counts: jax.Array, states: jax.Array, place: jax.Array
) -> tuple[jax.Array | None, tuple[jax.Array, jax.Array]]:
    """Computes what the queries of the tokens after states read, and the states and the position after them.

    Args:
      writes: What is written, without β, into what fades by a number a head, and the queries of these tokens, or None.
      weights: How much of each level a token's query reads, `(*B, N, S, levels)`.
      counts: 1 for each token, and 0 for padding behind, `(*B, 1, S, 1)`.
      states: `(*B, N, levels, V, H)`.
      place: The position of the first token, `(*B, N)`.

    Returns:
      The output `(*B, N, S, V)`, or None without queries, then states and position.
    """
    tokens, states = weights.shape[-2], states.astype(writes.key.dtype)
    given = jax.tree.map(lambda x: chunks.cut_chunks(x, min(chunks.CHUNK, tokens)), (writes, weights, counts))
    (states, place), out = jax.lax.scan(_chunk, (states, place[..., None, None]), given)
    if out is not None:
        out = jnp.moveaxis(out, 0, -3)
        out = out.reshape(*out.shape[:-3], -1, out.shape[-1])[..., :tokens, :]
    return out, (states, place[..., 0, 0])


def _chunk(before: tuple[jax.Array, jax.Array], given: tuple[Writes, jax.Array, jax.Array]) -> tuple[Any, Any]:
    """Computes the states and the position after a chunk, and what its queries read."""
    (states, place), (writes, weights, counts), levels = before, given, given[1].shape[-1]
    passage, places = Passage.of(writes), _places(counts, given[0].starts, place)
    end, known = places[..., -1:, :], level(places, place - 1, levels)
    every = lift(np.arange(levels), places.ndim)
    flat = states.reshape(*states.shape[:-3], -1, states.shape[-1])
    left = passage.through(jnp.ones_like(end, states.dtype))
    kept = joined(states, known[..., -1, :], left[..., 0, :])
    written = (level(end, places, levels) == every)[..., None] * writes.value[..., None, :]
    written = written.reshape(*written.shape[:-2], -1)
    written = jnp.einsum("...sw,...sh->...wh", written, passage.to_after(writes.key))
    after = kept + written.reshape(states.shape), wrapped(end + 1, levels)
    if writes.query is None:
        return after, None
    out = jnp.einsum("...th,...wh->...tw", passage.from_before(writes.query), flat)
    out = out.reshape(*out.shape[:-1], *states.shape[-3:-1])
    out = jnp.einsum("...tlv,...tl->...tv", out, jnp.take_along_axis(weights, jnp.maximum(known, every), -1))
    shares = jnp.take_along_axis(weights, level(places, places.swapaxes(-1, -2), levels), -1)
    return after, out + (shares * passage.between(writes.query, writes.key)) @ writes.value


def _places(counts: jax.Array, starts: jax.Array | None, place: jax.Array) -> jax.Array:
    """Computes the positions of tokens in their segments, `(*B, N, C, 1)`; padding repeats the last."""
    until = jnp.cumsum(counts, -2)
    if starts is None:
        return place + until - 1
    first = jnp.where(starts, until - counts, -place)
    return until - 1 - jax.lax.cummax(first, axis=first.ndim - 2)
