"""`implementation='reference'`: the definition of `attention.reference`, vmapped over heads and batch."""

import functools

import jax
import jax.numpy as jnp

from attention import reference
from attention.dropout import keep
from attention.kernels.call import DotCall


def dot(call: DotCall) -> tuple[jax.Array, jax.Array]:
    """Output `(*B, T, N, V)` and weights `(*B, N, T, S)`; everything is supported and nothing is fast."""
    shape = call.scores_shape
    dtype = jnp.promote_types(call.query.dtype, jnp.float32)
    group = call.query.shape[-2] // call.key.shape[-2]
    query, key, value = (jnp.moveaxis(x.astype(dtype), -2, -3) for x in (call.query, call.key, call.value))
    key, value = (jnp.repeat(x, group, axis=-3) for x in (key, value))
    allowed = call.allowed()
    allowed = jnp.broadcast_to(True if allowed is None else allowed, shape)
    bias = jnp.broadcast_to(0.0 if call.bias is None else call.bias, shape).astype(dtype)

    score = functools.partial(reference.dot_score, scale=call.scale)
    weigh = functools.partial(reference.head_weights, score)
    for _ in shape[:-2]:
        weigh = jax.vmap(weigh)
    weights = weigh(query, key, bias, allowed)
    dropped = weights
    if call.dropout_rate:
        kept = keep(call.dropout_seed, call.dropout_rate, shape)
        dropped = jnp.where(kept, weights / (1 - call.dropout_rate), 0.0)
    out = jnp.moveaxis(dropped @ value, -3, -2)
    return out.astype(call.query.dtype), weights.astype(call.query.dtype)
