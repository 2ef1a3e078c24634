"""Recurrences that forget by gates of the token: gated linear attention and the gated delta rule."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import unit
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.linear import Strongest
from attention.recurrences.recurrence import CHUNKED, Recurrence
from attention.recurrences.surrounded import Surrounded
from attention.types import Count


def projection(sizes: Sizes, *width: int) -> Parameter:
    """Declares a projection of the layer's inputs to an array of this shape for each head."""
    shape = (sizes.model, sizes.heads, *width)
    return Parameter(shape, initializers.lecun_normal(in_axis=0, out_axis=tuple(range(1, len(shape)))))


def low_rank_parameters(sizes: Sizes, rank: int, bias: float, part: str = "forget") -> dict[str, Parameter]:
    """Declares the arrays of `low_rank`, with the initial value of b."""
    width = sizes.heads, sizes.head
    return {
        f"{part}_down_kernel": Parameter((sizes.model, rank), initializers.lecun_normal()),
        f"{part}_up_kernel": Parameter((rank, *width), initializers.lecun_normal(in_axis=0, out_axis=(1, 2))),
        f"{part}_bias": Parameter(width, initializers.constant(bias)),
    }


def low_rank(params: Params, source: jax.Array, part: str = "forget", inner: Callable = lambda x: x) -> jax.Array:
    """Computes W₂ f(W₁ x) + b, `(*B, S, N, H)`."""
    logits = jnp.tensordot(inner(source @ params[f"{part}_down_kernel"]), params[f"{part}_up_kernel"], 1)
    return logits + lift(params[f"{part}_bias"], logits.ndim)


def forget_rates(key: Any, shape: tuple[int], dtype: Any) -> jax.Array:
    """Makes initial rates a, log 1 … 16."""
    return jnp.log(jnp.linspace(1, 16, *shape, dtype=dtype))


@dataclasses.dataclass(frozen=True)
class GatedLinear(Recurrence):
    """W ← W diag(α) + v kᵀ and W q/√H, α = σ(W₂ W₁ x + b)^(1/16) for each column (Yang et al. 2023, 2312.06635, eq. 3).

    Attributes:
      rank: The width between W₁ and W₂.
    """

    rank: Count = 16
    title = "Gated linear attention"
    traits = CHUNKED

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W₁, W₂ and b."""
        return low_rank_parameters(sizes, self.rank, 0.0)

    def gates(self, params: Params, source: jax.Array) -> jax.Array:
        """Computes log α, `(*B, S, N, H)`."""
        return jax.nn.log_sigmoid(low_rank(params, source)) / 16

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: jax.Array) -> jax.Array:
        """Computes W diag(α) + v kᵀ."""
        return state * jnp.exp(gates)[None] + jnp.outer(value, key)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes values as they are into what has faded by α."""
        return query * query.shape[-1] ** -0.5, key[0], value, None, key[1]

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q/√H."""
        return state @ query * query.size**-0.5

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        logits = source @ weights["forget_down_kernel"] @ weights["forget_up_kernel"][:, head]
        faded = (1 + np.exp(-logits - weights["forget_bias"][head])) ** (-1 / 16)
        state = state @ np.diag(faded) + np.outer(value, key)
        return state, state @ query / np.sqrt(len(key))


@dataclasses.dataclass(frozen=True)
class GatedDelta(Surrounded):
    """W ← α (W − β W k kᵀ) + β v kᵀ and W q, with unit SiLU keys and queries (Yang et al. 2024, 2412.06464, eq. 10).

    α = exp(−exp(a) softplus(W_α x + b)) and β = s·σ(W_β x), one of each for every head.

    Attributes:
      strongest: s. Above 1 the state can change its sign (Grazzi et al. 2024, arXiv:2411.12537), up to 2.
    """

    strongest: Strongest = 1.0
    title = "Gated delta attention"
    silent = ("query", "key")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W_α, b and a, and W_β."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        return {
            "forget_kernel": kernel,
            "strength_kernel": kernel,
            "forget_rate": Parameter((sizes.heads,), forget_rates),
            "forget_bias": Parameter((sizes.heads,), initializers.constant(-4.0)),
        } | self.surroundings(sizes)

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes log α and β, `(*B, S, N, 1)` and `(*B, S, N)`."""
        amount = jax.nn.softplus(source @ params["forget_kernel"] + lift(params["forget_bias"], source.ndim))
        decay = -jnp.exp(lift(params["forget_rate"], source.ndim)) * amount
        return decay[..., None], self.strength(params, source)

    def strength(self, params: Params, source: jax.Array) -> jax.Array:
        """Computes β, `(*B, S, N)`."""
        return self.strongest * jax.nn.sigmoid(source @ params["strength_kernel"])

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: Any) -> jax.Array:
        """Fades W, and puts the value in the place of what W stored for the key."""
        (decay, strength), key = gates, unit(jax.nn.silu(key))
        faded = jnp.exp(decay)[None] * state  # a gate of the head, or one of each column
        return faded + strength * jnp.outer(value - faded @ key, key)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes each value less what the faded W stores for its key."""
        key, (decay, strength) = key
        return unit(jax.nn.silu(query)), unit(jax.nn.silu(key)), value, strength, decay

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q."""
        return state @ unit(jax.nn.silu(query))

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        amount = np.log1p(np.exp(source @ weights["forget_kernel"][:, head] + weights["forget_bias"][head]))
        alpha = np.exp(-np.exp(weights["forget_rate"][head]) * amount)
        logit = source @ weights["strength_kernel"][:, head]
        return delta_step(alpha * state, self.strongest, logit, key, value, query)


def sigmoid(x: Any) -> Any:
    """Computes σ in NumPy, for oracles."""
    return 1 / (1 + np.exp(-x))


def unit_silu(x: np.ndarray) -> np.ndarray:
    """Computes SiLU divided by its norm in NumPy, for oracles."""
    return x * sigmoid(x) / np.linalg.norm(x * sigmoid(x))


def delta_step(faded: np.ndarray, strongest: float, logit: float, key: Any, value: Any, query: Any) -> Any:
    """Takes a step of the delta rule in NumPy, W (I − β k kᵀ) + β v kᵀ and W q, with unit SiLU keys and queries."""
    beta, key, query = strongest * sigmoid(logit), unit_silu(key), unit_silu(query)
    state = faded @ (np.eye(len(key)) - beta * np.outer(key, key)) + beta * np.outer(value, key)
    return state, state @ query
