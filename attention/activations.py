"""Activations by name, for the models' MLPs and for the MLPs that score pairs."""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def gelu(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """Returns x Φ(x) exactly (Hendrycks & Gimpel 2016); erf is faster on a CPU than the erfc of `jax.nn.gelu`."""
    return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


ACTIVATIONS: dict[str, Callable] = {
    "gelu": gelu,
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
    "tanh": jnp.tanh,
}
