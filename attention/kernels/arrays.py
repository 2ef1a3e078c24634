"""Dtypes and heads of arrays, for every implementation."""

from typing import Any

import jax
import jax.numpy as jnp


def score_dtype(x: jax.Array) -> Any:
    """Gives the dtype of scores and sums: the dtype of `x`, at least float32."""
    return jnp.promote_types(x.dtype, jnp.float32)


def precise(x: jax.Array) -> jax.Array:
    """Casts `x` to at least float32."""
    return x.astype(score_dtype(x))


def spread_heads(x: Any, heads: int, axis: int = -2) -> Any:
    """Repeats arrays `(*B, S, K, H)` to `(*B, S, N, H)`: key head k serves queries k·N/K … (k+1)·N/K."""
    return jax.tree.map(lambda y: y if y.shape[axis] == heads else jnp.repeat(y, heads // y.shape[axis], axis=axis), x)
