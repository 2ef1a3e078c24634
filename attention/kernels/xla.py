"""`implementation='xla'`: all pairs at once, in einsums that XLA compiles on every platform."""

import dataclasses

import jax
import jax.numpy as jnp

from attention.dropout import keep
from attention.forms import Dot
from attention.kernels import pairs
from attention.kernels.arrays import score_dtype
from attention.kernels.call import Call


def why_not(call: Call) -> str:
    """Gives no reason: XLA serves every call."""
    return ""


def attend(call: Call) -> tuple[jax.Array, jax.Array | None]:
    """Computes the output `(*B, T, N, V)`, and the weights `(*B, N, T, S)` if the call asks for them."""
    if isinstance(call.form, Dot):
        return weigh_values(dataclasses.replace(call, bias=call.whole_bias), _products(call.form, call.scores_shape))
    call = call.spread()
    return weigh_values(call, pairs.scores(call))


def _products(form: Dot, scores_shape: tuple[int, ...]) -> jax.Array:
    *batch, queries, heads, width = form.query.shape
    groups = form.key.shape[-2]
    kind = score_dtype(form.query)
    rounds = form.query.dtype != kind  # then scaling the queries would round them again
    query = form.query if rounds else form.query * form.scale
    scores = jnp.einsum(
        "...tkgh,...skh->...kgts",
        query.reshape(*batch, queries, groups, heads // groups, width),
        form.key,
        precision=form.precision,
        preferred_element_type=kind,
    ).reshape(scores_shape)
    return scores * form.scale if rounds else scores


def weigh_values(call: Call, scores: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """Computes output and weights of scores; where their batch or heads are shared, weights are computed once."""
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
    """Gives `(*B, T, N, V)` from weights `(*B, N, T, S)`, whose batch axes may be 1, and values `(*B, S, K, V)`."""
    *_, heads, queries, keys = weights.shape
    groups = value.shape[-2]
    shared = all(size == 1 for size in weights.shape[:-3])
    lead = () if shared else weights.shape[:-3]
    by_group = weights.reshape(*lead, groups, heads // groups, queries, keys)
    equation = "kgts,...skh->...tkgh" if shared else "...kgts,...skh->...tkgh"
    out = jnp.einsum(equation, by_group, value)
    return out.reshape(*out.shape[:-3], heads, out.shape[-1])
