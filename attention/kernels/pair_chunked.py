"""`implementation='chunked'` of the pairwise family: a block of queries at a time, so that memory stays bounded.

The backward pass computes each block's scores again.
"""

import jax
import jax.numpy as jnp

from attention.dropout import keep_columns, row_words
from attention.errors import UnsupportedError
from attention.kernels import xla
from attention.kernels.call import PairCall

BLOCK = 64  # queries


def why_not(call: PairCall) -> str:
    """What about this call is not supported, as part of a sentence; empty where it is."""
    return "it returns no weights" if call.return_weights else ""


def pair(call: PairCall) -> tuple[jax.Array, None]:
    """Output `(*B, T, N, V)`; no weights.

    Raises:
      UnsupportedError: the call wants weights.
    """
    if reason := why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    *batch, heads, queries, keys = call.scores_shape
    block = min(BLOCK, queries)
    words = row_words(call.dropout_seed, (*batch, heads, queries)) if call.dropout_rate else None

    @jax.checkpoint
    def one(rows):
        query, allowed, bias, words = rows
        scores = xla.pair_scores(call, query)
        weights = xla.softmax(scores if bias is None else scores + bias, allowed).astype(call.value.dtype)
        if words is not None:
            columns = jnp.arange(keys, dtype=jnp.uint32).reshape((1,) * (weights.ndim - 1) + (keys,))
            kept = keep_columns(jax.tree.map(lambda word: word[..., None], words), columns, call.dropout_rate)
            weights = jnp.where(kept, weights / (1 - call.dropout_rate), jnp.zeros((), weights.dtype))
        return xla.weighted_sum(weights, call.value)

    rows = (
        _blocks(call.query, -3, queries, block),
        *(_blocks(x, -2, queries, block) for x in (call.allowed(), call.bias)),
        jax.tree.map(lambda word: _blocks(word, -1, queries, block), words),
    )
    out = jnp.moveaxis(jax.lax.map(one, rows), 0, -4)
    return out.reshape(*out.shape[:-4], -1, *out.shape[-2:])[..., :queries, :, :], None


def _blocks(x: jax.Array | None, axis: int, queries: int, block: int) -> jax.Array | None:
    """`x` with its axis of queries padded and cut into blocks, which come first; broadcast where it had size 1."""
    if x is None:
        return None
    axis += x.ndim
    if x.shape[axis] == 1 and queries != 1:
        x = jnp.broadcast_to(x, (*x.shape[:axis], queries, *x.shape[axis + 1 :]))
    padded = jnp.pad(x, [(0, -queries % block if i == axis else 0) for i in range(x.ndim)])
    cut = padded.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :])
    return jnp.moveaxis(cut, axis, 0)
