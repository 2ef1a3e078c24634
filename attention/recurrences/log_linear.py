"""Log-linear attention (Guo et al. 2025, arXiv:2506.04761): states of the last 1, 2, 4, … tokens, with weights."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.recurrence import Recurrence
from attention.recurrences.selective import StateSpace
from attention.types import at_least


@dataclasses.dataclass(frozen=True)
class LogLinear(Recurrence):
    """Σ_l λ_l W_l q over states W_l of a Fenwick tree, each fading and written as that of `state_space`.

    W_0 is of the token alone. Of the tokens before, t in number, each bit that t has is a state of as many tokens, the
    nearer ones in the lower bits. λ_l = softplus(c_l · w_l·x) is of each token and head. This is log-linear Mamba-2 as
    flash-linear-attention has it, without what its layer has around.

    Attributes:
      levels: How many states there are; the last also keeps what is older than 2^(levels − 1) tokens.
    """

    levels: Annotated[int, at_least(2)] = 12
    title = "Log-linear attention"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares those of the state space, w and c."""
        shape = sizes.heads, self.levels
        wide = initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        levels = {
            "level_kernel": Parameter((sizes.model, *shape), wide),
            "level_scale": Parameter(shape, initializers.ones),
        }
        return StateSpace().parameters(sizes) | levels

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, ...]:
        """Computes −Δ exp(a) and Δ, `(*B, S, N, 1)`, and λ, `(*B, S, N, levels)`."""
        logits = jnp.tensordot(source, params["level_kernel"], 1)
        return *StateSpace().gates(params, source), jax.nn.softplus(logits * lift(params["level_scale"], logits.ndim))

    def begin(self, head: int, value: int) -> Any:
        """Makes empty states, no weights, and a count of 0 tokens."""
        return jnp.zeros((self.levels, value, head)), jnp.zeros(self.levels), jnp.zeros(())

    def write(self, params: Params, state: Any, key: jax.Array, value: jax.Array, gates: Any) -> Any:
        """Joins the states below the lowest bit of the count in that bit's, fades all, and writes to the first."""
        (states, _, count), (decay, step, weights) = state, gates
        tokens = jnp.round(count).astype(jnp.int32)
        lowest = jnp.minimum(jax.lax.population_count(tokens ^ (tokens - 1)), self.levels - 1)  # l of the lowest bit
        levels = jnp.arange(self.levels)[:, None, None]
        joined = jnp.sum(jnp.where(levels < lowest, states, 0), 0, keepdims=True)
        kept = jnp.where(levels < lowest, 0, states) + jnp.where(levels == lowest, joined, 0)
        states = (jnp.exp(decay)[:, None, None] * kept).at[0].add(jnp.outer(step * value, key))
        return states, weights, count + 1

    def read(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Computes Σ λ_l W_l q."""
        states, weights, _ = state
        return jnp.sum(weights[:, None] * (states @ query), 0)

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        states, _, count = state
        step = np.log1p(np.exp(source @ weights["step_kernel"][:, head] + weights["step_bias"][head]))
        logits = (source @ weights["level_kernel"][:, head]) * weights["level_scale"][head]
        states, level = np.array(states), min(f"{int(count):b}"[::-1].find("1") + 1, self.levels - 1)
        if count:
            states[level] += states[:level].sum(0)
            states[:level] = 0
        states = states * np.exp(-step * np.exp(weights["forget_rate"][head]))
        states[0] += step * np.outer(value, key)
        scales = np.log1p(np.exp(logits))
        return (states, scales, count + 1), np.einsum("l,lvh,h->v", scales, states, query)
