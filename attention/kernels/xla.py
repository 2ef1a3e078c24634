"""`implementation='xla'`: all pairs at once, in einsums that XLA compiles on every platform."""

import jax
import jax.numpy as jnp

from attention.dropout import keep
from attention.kernels import pairs
from attention.kernels.call import Call, DotCall, ScoreCall
from attention.kernels.reference import score_dtype


def dot(call: DotCall) -> tuple[jax.Array, jax.Array | None]:
    """Returns the output `(*B, T, N, V)`, and the weights `(*B, N, T, S)` if the call asks for them."""
    *batch, queries, heads, width = call.query.shape
    groups = call.key.shape[-2]
    kind = score_dtype(call.query)
    rounds = call.query.dtype != kind  # then scaling the queries would round them again
    query = call.query if rounds else call.query * call.scale
    scores = jnp.einsum(
        "...tkgh,...skh->...kgts",
        query.reshape(*batch, queries, groups, heads // groups, width),
        call.key,
        precision=call.precision,
        preferred_element_type=kind,
    ).reshape(call.scores_shape)
    return weigh_values(call, scores * call.scale if rounds else scores)


def pair(call: ScoreCall) -> tuple[jax.Array, jax.Array | None]:
    """Returns the output `(*B, T, N, V)`, and the weights `(*B, N, T, S)` if the call asks for them."""
    return weigh_values(call, pairs.scores(call))


def weigh_values(call: Call, scores: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Returns output and weights for scores; where their batch or heads are shared, weights are computed once."""
    dtype = call.value.dtype
    if call.bias is not None:
        scores = scores + call.bias
    if call.normaliser.random:
        scores = jnp.broadcast_to(scores, call.scores_shape)  # each sequence draws its own keys
    weights = call.normaliser.weigh(call.params, scores, call.allowed(), call.dropout_key).astype(dtype)
    dropped = weights
    if call.dropout_rate:
        kept = keep(call.dropout_seed, call.dropout_rate, call.scores_shape)
        dropped = jnp.where(kept, weights / (1 - call.dropout_rate), jnp.zeros((), dtype))
    weights = jnp.broadcast_to(weights, call.scores_shape) if call.return_weights else None
    return weighted_sum(dropped, call.value), weights


def weighted_sum(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Returns `(*B, T, N, V)` from weights `(*B, N, T, S)`, whose batch axes may be 1, and values `(*B, S, K, V)`."""
    *_, heads, queries, keys = weights.shape
    groups = value.shape[-2]
    shared = all(size == 1 for size in weights.shape[:-3])
    lead = () if shared else weights.shape[:-3]
    by_group = weights.reshape(*lead, groups, heads // groups, queries, keys)
    equation = "kgts,...skh->...tkgh" if shared else "...kgts,...skh->...tkgh"
    out = jnp.einsum(equation, by_group, value)
    return out.reshape(*out.shape[:-3], heads, out.shape[-1])
