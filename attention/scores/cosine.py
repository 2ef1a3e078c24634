"""Cosines with a learned temperature (Swin Transformer v2, Liu et al. 2022, eq. 2; QK-norm, Henry et al. 2020)."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import unit
from attention.forms import At, Dot, Tokens
from attention.kernels.arrays import precise
from attention.parameters import Parameter, Params, Sizes, lift
from attention.score import PRODUCTS, Score, Traits


@dataclasses.dataclass(frozen=True)
class Cosine(Score):
    """score = cos(q, k) / τ, with one τ for each head, at least 0.01 and 0.1 at first."""

    traits = Traits(kernels=PRODUCTS)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares −log τ."""
        return {"log_scale": Parameter((sizes.heads,), initializers.constant(math.log(10.0)), ("heads",))}

    def prepare_query(self, params: Params, query: jax.Array, at: Tokens) -> jax.Array:
        """Computes q/‖q‖, or k/‖k‖."""
        return unit(at.turn(query))

    prepare_key = prepare_query

    def pair(self, params: Params, query: jax.Array, key: jax.Array, at: At) -> jax.Array:
        """Divides the cosine by τ."""
        return query @ key * _scale(params)

    def form(self, params: Params, query: jax.Array, key: jax.Array) -> Dot:
        """Folds 1/τ into the queries."""
        scale = lift(_scale(params)[:, None], query.ndim)
        return Dot(precise(query) * scale, precise(key), 1.0)  # scores may be a hundred: no second rounding

    def oracle(self, weights: dict[str, np.ndarray], query: np.ndarray, key: np.ndarray, at: At) -> float:
        """Divides the cosine by τ, in NumPy."""
        cosine = np.sum(query * key) / np.linalg.norm(query) / np.linalg.norm(key)
        return cosine * min(np.exp(weights["log_scale"][at.head]), 100.0)


def _scale(params: Params) -> jax.Array:
    return jnp.exp(jnp.minimum(params["log_scale"], math.log(100.0)))
