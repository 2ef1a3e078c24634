"""Activations by name, for the models' MLPs and for the MLPs that score pairs; and vectors of norm 1."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gelu(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Computes x Φ(x) exactly (Hendrycks & Gimpel 2016); erf is faster on a CPU than the erfc of `jax.nn.gelu`."""
    return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


def unit(x: Float[Array, "*S H"]) -> Float[Array, "*S H"]:
    """Computes x / ‖x‖, at least in float32; at zero, which masked keys are, it and its gradient are zero."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    squares = jnp.sum(wide**2, axis=-1, keepdims=True)
    positive = squares > 0
    return jnp.where(positive, wide / jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0).astype(x.dtype)


def inverse_rms(x: Float[Array, "*S H"], epsilon: float) -> Float[Array, "*S 1"]:
    """Computes 1 / √(mean(x²) + ε) over the last axis, by which RMSNorm multiplies (Zhang & Sennrich 2019)."""
    return jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + epsilon)


ACTIVATIONS: dict[str, Callable] = {
    "gelu": gelu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
    "tanh": jnp.tanh,
}
