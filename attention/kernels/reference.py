"""`implementation='reference'`: the definitions of `attention.reference`, vmapped over heads and batch."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attention import reference
from attention.dropout import keep
from attention.kernels.call import DotCall, SoftmaxCall


def dot(call: DotCall) -> tuple[jax.Array, jax.Array]:
    """Returns the output `(*B, T, N, V)` and weights `(*B, N, T, S)`; it supports every call and is slow."""
    scale = jnp.asarray(call.scale, precise(call.query).dtype)
    score = functools.partial(reference.dot_score, precision=call.precision)
    return weigh_values(call, scores(score, call.query, call.key, weights=(scale,)))


def scores(
    score: Callable[..., jax.Array],
    query: jax.Array,
    key: jax.Array,
    weights: Any = (),
    *,
    per_head: bool = False,
    per_pair: bool = False,
) -> jax.Array:
    """Returns the scores `(*B, N, T, S)` of a function of one query, one key and weights, at least in float32.

    Args:
      score: Returns the score of one pair.
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`, K divides N.
      weights: A tuple of further arguments of `score`, with an axis N first if `per_head`, then T and S if `per_pair`.
      per_head: Whether each head has its own weights.
      per_pair: Whether each pair has its own weights.
    """
    query, key = (jnp.moveaxis(precise(x), -2, -3) for x in (query, spread_heads(key, query.shape[-2])))
    weights = jax.tree.map(precise, weights)

    def one_head(query, key, weights):
        shared, unique = ((), weights) if per_pair else (weights, ())
        return reference.head_scores(score, query, key, shared, unique)

    all_heads = jax.vmap(one_head, in_axes=(0, 0, 0 if per_head else None))
    for _ in query.shape[:-3]:
        all_heads = jax.vmap(all_heads, in_axes=(0, 0, None))
    return all_heads(query, key, weights)


def weigh_values(call: SoftmaxCall, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns output and weights for given scores by the definitions of masked softmax and weighted mean."""
    shape = call.scores_shape
    scores = jnp.broadcast_to(scores, shape)
    allowed = call.allowed()
    allowed = jnp.broadcast_to(True if allowed is None else allowed, shape)
    bias = jnp.broadcast_to(0.0 if call.bias is None else call.bias, shape).astype(scores.dtype)
    value = jnp.moveaxis(precise(spread_heads(call.value, shape[-3])), -2, -3)

    weigh = reference.head_weights
    for _ in shape[:-2]:
        weigh = jax.vmap(weigh)
    weights = weigh(scores, bias, allowed)
    dropped = weights
    if call.dropout_rate:
        kept = keep(call.dropout_seed, call.dropout_rate, shape)
        dropped = jnp.where(kept, weights / (1 - call.dropout_rate), 0.0)
    out = jnp.moveaxis(dropped @ value, -3, -2)
    return out.astype(call.value.dtype), weights.astype(call.value.dtype)


def score_dtype(x: jax.Array) -> Any:
    """Returns the dtype of scores and sums: the dtype of `x`, at least float32."""
    return jnp.promote_types(x.dtype, jnp.float32)


def precise(x: jax.Array) -> jax.Array:
    """Returns `x` at least in float32."""
    return x.astype(score_dtype(x))


def spread_heads(x: jax.Array, heads: int) -> jax.Array:
    """Returns `(*B, S, K, H)` as `(*B, S, N, H)`: key head k serves queries k·N/K … (k+1)·N/K."""
    return x if x.shape[-2] == heads else jnp.repeat(x, heads // x.shape[-2], axis=-2)
