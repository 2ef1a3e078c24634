"""`implementation='reference'`: masked softmax and weighted mean as they are defined, vmapped over heads and batch."""

import jax
import jax.numpy as jnp

from attention import reference
from attention.dropout import keep
from attention.kernels import pairs
from attention.kernels.arrays import precise, spread_heads
from attention.kernels.call import Call
from attention.normaliser import SOFTMAX


def attend(call: Call) -> tuple[jax.Array, jax.Array]:
    """Computes output and weights by the definitions, one pair and one row at a time."""
    call = call.spread()
    return weigh_values(call, pairs.scores(call))


def why_not(call: Call) -> str:
    """Gives no reason: definitions serve every call."""
    return ""


def weigh_values(call: Call, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Computes output and weights of given scores by the definitions of masked softmax and weighted mean."""
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
