"""Recurrences that forget by gates of the token: gated linear attention and the gated delta rule."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.nn import initializers

from attention.activations import unit
from attention.parameters import Count, Parameter, Params, Sizes
from attention.recurrences.recurrence import Recurrence


@dataclasses.dataclass(frozen=True)
class GatedLinear(Recurrence):
    """W ← W diag(α) + v kᵀ and W q/√H, α = σ(W₂ W₁ x + b)^(1/16) for each column (Yang et al. 2023, 2312.06635, eq. 3).

    Attributes:
      rank: The width between W₁ and W₂.
    """

    rank: Count = 16
    title = "Gated linear attention"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W₁, W₂ and b."""
        init, width = initializers.lecun_normal(), (sizes.heads, sizes.head)
        up = Parameter((self.rank, *width), initializers.lecun_normal(in_axis=0, out_axis=(-2, -1)))
        return {
            "forget_down_kernel": Parameter((sizes.model, self.rank), init),
            "forget_up_kernel": up,
            "forget_bias": Parameter(width, initializers.zeros),
        }

    def gates(self, params: Params, source: jax.Array) -> jax.Array:
        """Returns α, `(*B, S, N, H)`."""
        logits = jnp.tensordot(source @ params["forget_down_kernel"], params["forget_up_kernel"], 1)
        bias = params["forget_bias"]
        return jnp.exp(jax.nn.log_sigmoid(logits + bias.reshape((1,) * (logits.ndim - 2) + bias.shape)) / 16)

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: jax.Array) -> jax.Array:
        """Returns W diag(α) + v kᵀ."""
        return state * gates[None] + jnp.outer(value, key)

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Returns W q/√H."""
        return state @ query * query.size**-0.5


@dataclasses.dataclass(frozen=True)
class GatedDelta(Recurrence):
    """W ← α (W − β W k kᵀ) + β v kᵀ and W q, with unit SiLU keys and queries (Yang et al. 2024, 2412.06464, eq. 10).

    α = exp(−exp(a) softplus(W_α x + b)) and β = σ(W_β x), one of each a head.
    """

    title = "Gated delta attention"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns W_α, b and a, and W_β."""
        kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
        rate = lambda key, shape, dtype: jnp.log(jnp.linspace(1, 16, shape[0], dtype=dtype))  # noqa: E731
        rates = {
            "forget_rate": Parameter((sizes.heads,), rate),
            "forget_bias": Parameter((sizes.heads,), initializers.constant(-4.0)),
        }
        return {"forget_kernel": kernel, "strength_kernel": kernel} | rates

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns α and β, `(*B, S, N)`."""
        spread = lambda x: x.reshape((1,) * (source.ndim - 1) + x.shape)  # noqa: E731
        amount = jax.nn.softplus(source @ params["forget_kernel"] + spread(params["forget_bias"]))
        keep = jnp.exp(-jnp.exp(spread(params["forget_rate"])) * amount)
        return keep, jax.nn.sigmoid(source @ params["strength_kernel"])

    def write(
        self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: tuple[jax.Array, jax.Array]
    ) -> jax.Array:
        """Returns the faded W with the value in the place of what W stored for the key."""
        (keep, strength), key = gates, unit(jax.nn.silu(key))
        faded = jnp.reshape(keep, (1, -1)) * state  # a gate of the head, or one of each column
        return faded + strength * jnp.outer(value - faded @ key, key)

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Returns W q."""
        return state @ unit(jax.nn.silu(query))
