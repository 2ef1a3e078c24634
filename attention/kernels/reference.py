"""`implementation='reference'`: masked softmax and weighted mean as they are defined, vmapped over heads and batch."""

from typing import Any

import jax
import jax.numpy as jnp

from attention import reference
from attention.dropout import keep
from attention.kernels.call import Call
from attention.normaliser import SOFTMAX


def weigh_values(call: Call, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns output and weights for given scores by the definitions of masked softmax and weighted mean."""
    shape = call.scores_shape
    scores = jnp.broadcast_to(scores, shape)
    allowed = call.allowed()
    allowed = jnp.broadcast_to(True if allowed is None else allowed, shape)
    bias = jnp.broadcast_to(0.0 if call.bias is None else call.bias, shape).astype(scores.dtype)
    value = jnp.moveaxis(precise(spread_heads(call.value, shape[-3])), -2, -3)

    if call.normaliser == SOFTMAX:
        weigh = reference.head_weights
        for _ in shape[:-2]:
            weigh = jax.vmap(weigh)
        weights = weigh(scores, bias, allowed)
    else:
        weights = call.normaliser.weigh(call.params, scores + bias, allowed, call.dropout_key)
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


def spread_heads(x: Any, heads: int, axis: int = -2) -> Any:
    """Returns arrays `(*B, S, K, H)` as `(*B, S, N, H)`: key head k serves queries k·N/K … (k+1)·N/K."""
    return jax.tree.map(lambda y: y if y.shape[axis] == heads else jnp.repeat(y, heads // y.shape[axis], axis=axis), x)
