"""Every mechanism as its paper writes it, for one pair (i, j), one head or one layer: the definition and the oracle.

Nothing here is fast and nothing here is clever. The fast forms are tested against these functions.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Score = Callable[[Float[Array, "H"], Float[Array, "H"]], Float[Array, ""]]


def dot_score(query: Float[Array, "H"], key: Float[Array, "H"], scale: float) -> Float[Array, ""]:
    """q·k times `scale`; 1/√H in Vaswani et al. (2017), eq. 1."""
    return jnp.dot(query, key) * scale


def masked_softmax(scores: Float[Array, "S"], allowed: Bool[Array, "S"]) -> Float[Array, "S"]:
    """Softmax over the allowed keys of one query; all zeros where none is allowed."""
    highest = jnp.max(jnp.where(allowed, scores, -jnp.inf), initial=-jnp.inf)
    shift = jnp.where(jnp.isfinite(highest), highest, 0.0)
    exponentials = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores - shift, 0.0)), 0.0)
    total = jnp.sum(exponentials)
    return exponentials / jnp.where(total > 0, total, 1.0)


def head_weights(
    score: Score,
    query: Float[Array, "T H"],
    key: Float[Array, "S H"],
    bias: Float[Array, "T S"],
    allowed: Bool[Array, "T S"],
) -> Float[Array, "T S"]:
    """w_ij = softmax over allowed j of score(q_i, k_j) + bias_ij, for one head."""
    scores = jax.vmap(jax.vmap(score, in_axes=(None, 0)), in_axes=(0, None))(query, key)
    return jax.vmap(masked_softmax)(scores + bias, allowed)


def align_values(
    value: Float[Array, "S H"], kernel: Float[Array, "S S"], bias: Float[Array, "S"], causal: bool
) -> Float[Array, "S H"]:
    """V'_i = Σ_j W^A_ij V_j + b_i for one head (004, eq. 22); lower-triangular W^A when causal."""
    kernel = jnp.tril(kernel) if causal else kernel
    return kernel @ value + bias[:, None]


# The layers of paper 004, written with its matrices: x is (L, D) and each W is (D, D).


def _heads(x: Float[Array, "L D"], heads: int) -> Float[Array, "N L H"]:
    """Head n is columns n·H … (n+1)·H."""
    return jnp.stack(jnp.split(x, heads, axis=1))


def _attend(query: Float[Array, "N L H"], key: Float[Array, "N L H"], value: Float[Array, "N L H"]):
    """H_i = softmax(Q_i K_iᵀ / √d_k) V_i side by side (004, eq. 2 and 3)."""
    scores = jnp.einsum("nth,nsh->nts", query, key) / jnp.sqrt(query.shape[-1])
    heads = jnp.einsum("nts,nsh->nth", jax.nn.softmax(scores), value)
    return jnp.concatenate(list(heads), axis=1)


def standard_layer(x, w_query, w_key, w_value, w_out, heads: int) -> Float[Array, "L D"]:
    """Standard attention without biases (004, Definition 1)."""
    return _attend(_heads(x @ w_query, heads), _heads(x @ w_key, heads), _heads(x @ w_value, heads)) @ w_out


def optimised_layer(x, w_query, w_key, w_out, heads: int) -> Float[Array, "L D"]:
    """Optimised Attention: the values are slices of the input (004, Definition 2)."""
    return _attend(_heads(x @ w_query, heads), _heads(x @ w_key, heads), _heads(x, heads)) @ w_out


def efficient_layer(x, w_query, w_out, heads: int) -> Float[Array, "L D"]:
    """Efficient Attention: keys and values are slices of the input (004, Definition 3)."""
    return _attend(_heads(x @ w_query, heads), _heads(x, heads), _heads(x, heads)) @ w_out


def super_layer(x, w_query, w_align, w_out, heads: int) -> Float[Array, "L D"]:
    """Super Attention: W^A mixes the values over tokens, one for all heads (004, Definition 4)."""
    value = jnp.einsum("ts,nsh->nth", w_align, _heads(x, heads))
    return _attend(_heads(x @ w_query, heads), _heads(x, heads), value) @ w_out
