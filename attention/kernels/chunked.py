"""`implementation='chunked'`: a few sequences at a time, so that their scores stay in the cache.

The whole scores `(B, N, T, S)` never exist. The backward pass keeps the output and the log-sum-exp of each row, and
computes scores and dropout bits again (as FlashAttention does: Dao et al. 2022).
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from attention.dropout import RowWords, keep_columns, row_words
from attention.errors import UnsupportedError
from attention.kernels.call import DotCall


def why_not(call: DotCall) -> str:
    """What about this call is not supported, as part of a sentence; empty where it is."""
    reasons = {"it adds no bias": call.bias is not None, "it returns no weights": call.return_weights}
    return "; ".join(reason for reason, holds in reasons.items() if holds)


def dot(call: DotCall) -> tuple[jax.Array, None]:
    """Output `(*B, T, N, V)`; no weights.

    Raises:
      UnsupportedError: the call has a bias or wants weights.
    """
    if reason := why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    batch = call.query.shape[:-3]
    query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (call.query, call.key, call.value))
    allowed = call.allowed()
    if allowed is not None:
        allowed = _flat(allowed, batch)
    out = _attend(query, key, value, allowed, call.dropout_seed, call.scale, call.dropout_rate)
    return out.reshape(*batch, *out.shape[1:]), None


def _flat(allowed: jax.Array, batch: tuple[int, ...]) -> jax.Array:
    """A mask with one batch axis, of size 1 where all sequences share it."""
    lead, rest = allowed.shape[:-3], allowed.shape[-3:]
    if all(size == 1 for size in lead):
        return allowed.reshape(1, *rest)
    return jnp.broadcast_to(allowed, (*batch, *rest)).reshape(-1, *rest)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _attend(query, key, value, allowed, seed, scale: float, rate: float) -> jax.Array:
    return _forward(query, key, value, allowed, seed, scale, rate)[0]


def _forward(query, key, value, allowed, seed, scale, rate):
    one = functools.partial(_forward_one, scale=scale, rate=rate)
    each = _each(query, key, allowed, seed, rate)
    out, log_sums = _map_sequences(one, (query, key, value, each), allowed)
    return out, (query, key, value, allowed, seed, out, log_sums)


def _backward(scale, rate, residuals, gradient):
    query, key, value, allowed, seed, out, log_sums = residuals
    one = functools.partial(_backward_one, scale=scale, rate=rate)
    each = _each(query, key, allowed, seed, rate)
    return (*_map_sequences(one, (query, key, value, each, out, log_sums, gradient), allowed), None, None)


_attend.defvjp(_forward, _backward)


def _each(query: jax.Array, key: jax.Array, allowed: jax.Array | None, seed: Any, rate: float) -> tuple[Any, Any]:
    """What every sequence has of its own: dropout's words for its rows, and its mask."""
    batch, queries, heads, _ = query.shape
    groups = key.shape[2]
    words = row_words(seed, (batch, groups, heads // groups * queries)) if rate else None
    return words, (None if allowed is None or len(allowed) == 1 else allowed)


def _map_sequences(one, arguments: Any, allowed: jax.Array | None) -> Any:
    """`one` over the batch axis, on as many sequences at a time as devices split the batch over.

    They are strided, every (B/D)-th, so that each device works on a sequence of its own and none has to move.
    """
    one = functools.partial(one, allowed[0] if allowed is not None and len(allowed) == 1 else None)
    size = len(arguments[0])
    tile = math.gcd(size, _batch_shards())
    if tile == 1:
        return jax.lax.map(lambda part: one(*part), arguments)
    split = jax.tree.map(lambda x: x.reshape(tile, size // tile, *x.shape[1:]).swapaxes(0, 1), arguments)
    mapped = jax.lax.map(lambda part: jax.vmap(one)(*part), split)
    return jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(size, *x.shape[2:]), mapped)


def _batch_shards() -> int:
    """Devices that the mesh in force splits a batch over."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in ("data", "fsdp") if axis in mesh.axis_names)


# One sequence: query (T, N, H), key (S, K, H), value (S, K, V). The G = N/K heads that share a key head are rows of
# one matrix: (K, G·T, H).


def _rows(x: jax.Array, groups: int) -> jax.Array:
    length, heads, width = x.shape
    return x.reshape(length, groups, heads // groups, width).transpose(1, 2, 0, 3).reshape(groups, -1, width)


def _unrows(x: jax.Array, length: int) -> jax.Array:
    groups, _, width = x.shape
    return x.reshape(groups, -1, length, width).transpose(2, 0, 1, 3).reshape(length, -1, width)


def _mask(scores: jax.Array, allowed: jax.Array | None, heads: int) -> jax.Array:
    """Scores (K, G·T, S), lowest where the mask, which broadcasts to (N, T, S), does not allow."""
    if allowed is None:
        return scores
    groups, rows, keys = scores.shape
    spread = jnp.broadcast_to(allowed, (heads, groups * rows // heads, keys)).reshape(scores.shape)
    return jnp.where(spread, scores, jnp.finfo(scores.dtype).min)


def _kept(words: RowWords, keys: int, rate: float) -> jax.Array:
    first, second = (word[..., None] for word in words)
    return keep_columns((first, second), jnp.arange(keys, dtype=jnp.uint32)[None, None], rate)


def _forward_one(shared, query, key, value, each, *, scale, rate):
    """Output (T, N, V) and log-sum-exp (K, G·T) of one sequence."""
    words, own = each
    (queries, heads, _), (keys, groups, _) = query.shape, key.shape
    precise = jnp.promote_types(query.dtype, jnp.float32)
    rows, key, value = _rows(query * scale, groups), key.swapaxes(0, 1), value.swapaxes(0, 1)
    scores = jnp.einsum("krh,ksh->krs", rows, key, preferred_element_type=precise)
    scores = _mask(scores, shared if own is None else own, heads)
    # Half the lowest number: a row with nothing allowed then has weights exp(lowest - half) = 0, and sums to 0.
    highest = jnp.maximum(scores.max(-1, keepdims=True), jnp.finfo(precise).min / 2)
    weights = jnp.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    total = jnp.where(total == 0, 1, total)
    if rate:
        weights = jnp.where(_kept(words, keys, rate), weights, 0)
    out = jnp.einsum("krs,ksh->krh", weights.astype(value.dtype), value, preferred_element_type=precise)
    out = _unrows(out / (total * (1 - rate)), queries).astype(query.dtype)
    return out, (highest + jnp.log(total))[..., 0]


def _backward_one(shared, query, key, value, each, out, log_sums, gradient, *, scale, rate):
    """Gradients of one sequence's query, key and value.

    Scores are transposed, (K, S, G·T): two of the three last products then need no transposition of their own.
    """
    words, own = each
    (queries, heads, _), (keys, groups, _) = query.shape, key.shape
    types = (query.dtype, key.dtype, value.dtype)
    precise = jnp.promote_types(query.dtype, jnp.float32)
    product = functools.partial(jnp.einsum, preferred_element_type=precise)
    through_sum = jnp.sum(gradient.astype(precise) * out.astype(precise), -1, keepdims=True)
    through_sum = _rows(through_sum, groups).swapaxes(1, 2)
    rows, key, value = _rows(query * scale, groups), key.swapaxes(0, 1), value.swapaxes(0, 1)
    gradient = _rows((gradient / (1 - rate)).astype(query.dtype), groups)
    scores = product("ksh,krh->ksr", key, rows)
    scores = _mask(scores.swapaxes(1, 2), shared if own is None else own, heads).swapaxes(1, 2)
    weights = dropped = jnp.exp(scores - log_sums[:, None])
    d_weights = product("ksh,krh->ksr", value, gradient)
    if rate:
        kept = _kept(words, keys, rate).swapaxes(1, 2)
        dropped, d_weights = jnp.where(kept, weights, 0), jnp.where(kept, d_weights, 0)
    d_scores = (weights * (d_weights - through_sum)).astype(query.dtype)
    d_query = _unrows(product("ksr,ksh->krh", d_scores, key) * scale, queries)
    d_key = product("ksr,krh->ksh", d_scores, rows).swapaxes(0, 1)
    d_value = product("ksr,krh->ksh", dropped.astype(gradient.dtype), gradient).swapaxes(0, 1)
    return tuple(x.astype(dtype) for x, dtype in zip((d_query, d_key, d_value), types, strict=True))
