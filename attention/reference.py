"""The definition of every mechanism as its paper writes it, for one pair (i, j), one head or one layer.

These functions are simple and slow. Tests compare the fast implementations with them.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Layer = tuple[Float[Array, "..."], Float[Array, "..."]]


def dot_score(
    query: Float[Array, "H"],
    key: Float[Array, "H"],
    scale: float | Float[Array, ""],
    precision: jax.lax.PrecisionLike = None,
) -> Float[Array, ""]:
    """Computes q·k times `scale`, which is 1/√H in Vaswani et al. (2017), eq. 1."""
    return jnp.dot(query, key, precision=precision) * scale


def luong_score(query: Float[Array, "H"], key: Float[Array, "H"], kernel: Float[Array, "H H"]) -> Float[Array, ""]:
    """Computes qᵀ W_a k (Luong et al. 2015, eq. 8, "general"; Wikipedia)."""
    return query @ kernel @ key


def luong_concat_score(
    query: Float[Array, "H"],
    key: Float[Array, "H"],
    kernel: Float[Array, "2*H M"],
    bias: Float[Array, "M"],
    vector: Float[Array, "M"],
) -> Float[Array, ""]:
    """Computes vᵀ tanh(W_a [q; k] + b) (Luong et al. 2015, eq. 8, "concat", which has no b)."""
    return jnp.tanh(jnp.concatenate([query, key]) @ kernel + bias) @ vector


def additive_score(
    query: Float[Array, "H"],
    key: Float[Array, "H"],
    query_kernel: Float[Array, "H M"],
    key_kernel: Float[Array, "H M"],
    bias: Float[Array, "M"],
    vector: Float[Array, "M"],
) -> Float[Array, ""]:
    """Computes vᵀ tanh(W q + U k + b) (Bahdanau et al. 2014, appendix A.1.2; Wikipedia)."""
    return jnp.tanh(query @ query_kernel + key @ key_kernel + bias) @ vector


def neural_score(
    query: Float[Array, "H"],
    key: Float[Array, "H"],
    down: Sequence[Layer],
    layers: Sequence[Layer],
    activation: Callable[[jax.Array], jax.Array],
) -> Float[Array, ""]:
    """Computes MLP(concat(q', k')), where q' and k' are q and k projected down (DiGiugno, eq. 4 to 8).

    Args:
      down: Kernel and bias of the projections of query and key, or nothing.
      layers: All layers of the MLP, `(2d', M)` to `(M, 1)`.
      activation: The activation after each layer but the last.
    """
    if down:
        (query_kernel, query_bias), (key_kernel, key_bias) = down
        query, key = query @ query_kernel + query_bias, key @ key_kernel + key_bias
    hidden = jnp.concatenate([query, key])
    for kernel, bias in layers[:-1]:
        hidden = activation(hidden @ kernel + bias)
    kernel, bias = layers[-1]
    return (hidden @ kernel + bias)[0]


def gaussian_score(
    query: Float[Array, "H"], key: Float[Array, "H"], sigma: Float[Array, ""], squared: bool
) -> Float[Array, ""]:
    """Computes −‖q−k‖²/2σ², as the derivation of Sanger, eq. 14 means it, or −‖q−k‖/2σ², as eq. 14 is printed."""
    distance = jnp.sum((query - key) ** 2)
    if not squared:
        apart = distance > 0
        distance = jnp.where(apart, jnp.sqrt(jnp.where(apart, distance, 1.0)), 0.0)
    return -distance / (2 * sigma**2)


def unit(x: Float[Array, "*S H"]) -> Float[Array, "*S H"]:
    """Computes x / ‖x‖."""
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def masked_softmax(scores: Float[Array, "S"], allowed: Bool[Array, "S"]) -> Float[Array, "S"]:
    """Computes the softmax over the allowed keys of one query; zeros where no key is allowed."""
    highest = jnp.max(jnp.where(allowed, scores, -jnp.inf), initial=-jnp.inf)
    # The shift does not change the softmax, so its gradient is stopped. The gradient of a maximum divides by the number
    # of elements equal to it; a compiler that recomputes the scores with other rounding may find none.
    shift = jax.lax.stop_gradient(jnp.where(jnp.isfinite(highest), highest, 0.0))
    exponentials = jnp.where(allowed, jnp.exp(jnp.where(allowed, scores - shift, 0.0)), 0.0)
    total = jnp.sum(exponentials)
    return exponentials / jnp.where(total > 0, total, 1.0)


def head_weights(
    scores: Float[Array, "T S"], bias: Float[Array, "T S"], allowed: Bool[Array, "T S"]
) -> Float[Array, "T S"]:
    """Computes w_ij, the softmax over the allowed j of s_ij + bias_ij, for one head."""
    return jax.vmap(masked_softmax)(scores + bias, allowed)


def elu_feature(x: Float[Array, "*S H"]) -> Float[Array, "*S H"]:
    """Computes φ(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""
    return jax.nn.elu(x) + 1


def linear_head(
    query: Float[Array, "T H"],
    key: Float[Array, "S H"],
    value: Float[Array, "S V"],
    allowed: Bool[Array, "T S"],
    feature: Callable[[jax.Array], jax.Array],
    normalise: bool,
) -> Float[Array, "T V"]:
    """Computes Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j) over allowed j (Katharopoulos et al. 2020, eq. 4)."""
    weights = jnp.where(allowed, feature(query) @ feature(key).T, 0.0)
    total = jnp.sum(weights, axis=1, keepdims=True) if normalise else jnp.ones((len(query), 1), weights.dtype)
    return weights @ value / jnp.where(total == 0, 1.0, total)


def delta_head(
    query: Float[Array, "T H"],
    key: Float[Array, "S H"],
    value: Float[Array, "S V"],
    strength: Float[Array, "S"],
    written: Int[Array, "T"],
) -> Float[Array, "T V"]:
    """Updates W ← W + β (v − W φ(k)) φ(k)ᵀ token by token and returns W φ(q) (Schlag et al. 2021, eq. 23 to 25).

    φ is SiLU divided by its norm (Yang et al. 2024), and query i reads W after the first `written[i]` keys.
    """
    phi = lambda x: unit(jax.nn.silu(x))  # noqa: E731

    def write(fast, token):
        k, v, beta = token
        fast = fast + beta * jnp.outer(v - fast @ k, k)
        return fast, fast

    empty = jnp.zeros((value.shape[1], key.shape[1]), value.dtype)
    _, after = jax.lax.scan(write, empty, (phi(key), value, strength))
    states = jnp.concatenate([empty[None], after])
    return jnp.einsum("tvh,th->tv", states[written], phi(query))


def align_values(
    value: Float[Array, "S H"], kernel: Float[Array, "S S"], bias: Float[Array, "S"], causal: bool
) -> Float[Array, "S H"]:
    """Computes V'_i = Σ_j W^A_ij V_j + b_i for one head (Hosseini, eq. 22); W^A is lower-triangular if causal."""
    kernel = jnp.tril(kernel) if causal else kernel
    return kernel @ value + bias[:, None]


# The layers of Hosseini in the matrix notation of the paper: x is (L, D) and each W is (D, D).


def _heads(x: Float[Array, "L D"], heads: int) -> Float[Array, "N L H"]:
    """Splits x into heads; head n has the columns n·H … (n+1)·H."""
    return jnp.stack(jnp.split(x, heads, axis=1))


def _attend(query: Float[Array, "N L H"], key: Float[Array, "N L H"], value: Float[Array, "N L H"]):
    """Concatenates the heads H_i = softmax(Q_i K_iᵀ / √d_k) V_i (Hosseini, eq. 2 and 3)."""
    scores = jnp.einsum("nth,nsh->nts", query, key) / jnp.sqrt(query.shape[-1])
    heads = jnp.einsum("nts,nsh->nth", jax.nn.softmax(scores), value)
    return jnp.concatenate(list(heads), axis=1)


def standard_layer(x, w_query, w_key, w_value, w_out, heads: int) -> Float[Array, "L D"]:
    """Computes standard attention without biases (Hosseini, Definition 1)."""
    return _attend(_heads(x @ w_query, heads), _heads(x @ w_key, heads), _heads(x @ w_value, heads)) @ w_out


def optimised_layer(x, w_query, w_key, w_out, heads: int) -> Float[Array, "L D"]:
    """Computes Optimised Attention: the values are slices of the input (Hosseini, Definition 2)."""
    return _attend(_heads(x @ w_query, heads), _heads(x @ w_key, heads), _heads(x, heads)) @ w_out


def efficient_layer(x, w_query, w_out, heads: int) -> Float[Array, "L D"]:
    """Computes Efficient Attention: keys and values are slices of the input (Hosseini, Definition 3)."""
    return _attend(_heads(x @ w_query, heads), _heads(x, heads), _heads(x, heads)) @ w_out


def super_layer(x, w_query, w_align, w_out, heads: int) -> Float[Array, "L D"]:
    """Computes Super Attention: one W^A for all heads mixes the values over tokens (Hosseini, Definition 4)."""
    value = jnp.einsum("ts,nsh->nth", w_align, _heads(x, heads))
    return _attend(_heads(x @ w_query, heads), _heads(x, heads), value) @ w_out
