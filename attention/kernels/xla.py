"""`implementation='xla'`: einsums that XLA compiles everywhere."""

import jax
import jax.numpy as jnp

from attention.dropout import keep
from attention.kernels.call import DotCall


def dot(call: DotCall) -> tuple[jax.Array, jax.Array | None]:
    """Output `(*B, T, N, V)` and, where wanted, weights `(*B, N, T, S)`."""
    *batch, queries, heads, width = call.query.shape
    keys, key_heads = call.key.shape[-3:-1]
    grouped = (*batch, queries, key_heads, heads // key_heads, width)
    precise = jnp.promote_types(call.query.dtype, jnp.float32)
    scores = jnp.einsum(
        "...tkgh,...skh->...kgts",
        call.query.reshape(grouped) * call.scale,
        call.key,
        preferred_element_type=precise,
    ).reshape(call.scores_shape)
    if call.bias is not None:
        scores = scores + call.bias
    weights = softmax(scores, call.allowed()).astype(call.query.dtype)
    dropped = weights
    if call.dropout_rate:
        kept = keep(call.dropout_seed, call.dropout_rate, call.scores_shape)
        dropped = jnp.where(kept, weights / (1 - call.dropout_rate), jnp.zeros((), weights.dtype))
    by_group = dropped.reshape(*batch, key_heads, heads // key_heads, queries, keys)
    out = jnp.einsum("...kgts,...skh->...tkgh", by_group, call.value)
    out = out.reshape(*batch, queries, heads, call.value.shape[-1])
    return out, (weights if call.return_weights else None)


def softmax(scores: jax.Array, allowed: jax.Array | None) -> jax.Array:
    """Softmax over the last axis among the allowed; rows with none allowed are zeros with zero gradient."""
    if allowed is None:
        return jax.nn.softmax(scores, axis=-1)
    scores = jnp.where(allowed, scores, -jnp.inf)
    highest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    exponentials = jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0.0))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total > 0, total, 1.0)
