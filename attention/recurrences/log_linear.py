"""Log-linear attention: in place of one state, one for each of the blocks of 1, 1, 2, 4, … tokens behind a token."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.kernels.arrays import precise, spread_heads
from attention.mask import Mask
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.gated import projection
from attention.recurrences.levels import from_levels, joined, level, wrapped
from attention.recurrences.selective import StateSpace
from attention.recurrences.state import Marks, last_token
from attention.types import Count


@dataclasses.dataclass(frozen=True)
class LogLinear(StateSpace):
    """Σ_l λ_l W_l q, where W_l is the state of `state_space` from the keys at level l (Guo et al. 2025, 2506.04761).

    Levels are those of `attention.recurrences.levels`; λ = softplus(s∘(W_λ x)) of the query's token, with a learned s
    of each head. This is log-linear Mamba-2 as flash-linear-attention has it; copies of it also divide by √H. What
    may surround it is as in `state_space`.

    Attributes:
      levels: The number of levels. The last has all tokens before the block of 2^(levels − 2) that the query is in.
    """

    levels: Count = 15
    title = "Log-linear attention"
    quick_steps = False

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the arrays of `state_space`, W_λ and s."""
        scale = Parameter((sizes.heads, self.levels), initializers.ones)
        return super().parameters(sizes) | {"level_kernel": projection(sizes, self.levels), "level_scale": scale}

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, ...]:
        """Computes −Δ exp(a) and Δ, `(*B, S, N, 1)`, and λ, `(*B, S, N, levels)`."""
        logits = jnp.tensordot(source, params["level_kernel"], 1)
        return *super().gates(params, source), jax.nn.softplus(logits * lift(params["level_scale"], logits.ndim))

    def begin(self, head: int, value: int) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Makes empty states of all levels, weights of no token, and the position of the next."""
        return jnp.zeros((self.levels, value, head)), jnp.zeros(self.levels), jnp.zeros(())

    def write(self, params: Params, state: Any, key: jax.Array, value: jax.Array, gates: Any) -> Any:
        """Fades the states, joins the blocks that are full, and writes the value to the level of its own token."""
        (states, _, place), (decay, step, weights) = state, gates
        position = jnp.round(place).astype(jnp.int32)
        kept = joined(states, level(position, position - 1, self.levels)[None], jnp.exp(decay))
        after = wrapped(position + 1, self.levels).astype(place.dtype)
        return kept.at[0].add(jnp.outer(step * value, key)), weights, after

    def read(self, params: Params, state: Any, query: jax.Array) -> jax.Array:
        """Sums what the states hold for the query, by the weights of the token."""
        states, weights, _ = state
        return weights @ (states @ query)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes as `state_space`."""
        key, (*gates, _) = key
        return super().writes(params, query, (key, gates), value)

    def _go_on(
        self, params: Params, query: Any, key: Any, value: Any, mask: Mask, first: Any, state: Any = None
    ) -> tuple[jax.Array | None, Any]:
        """Computes in chunks what the queries read, if the mask is causal, and the state after; see `Recurrence`."""
        states, last, place = self._empty(query, value) if state is None else state
        real = Marks.of(mask, first, value.shape[-3]).real
        counts = jnp.ones((1,) * (value.ndim - 3) + (value.shape[-3],), bool) if real is None else real
        weights = spread_heads(precise(key[1][-1]), states.shape[-4])
        last = last_token(weights, last, real)
        weights = jnp.where(counts[..., None, None], weights, last[..., None, :, :])  # padding reads as the last token
        writes = self._writes(params, query, key, value, mask, first)
        out, (states, after) = from_levels(
            writes if mask.causal else writes._replace(query=None),
            jnp.moveaxis(weights, -2, -3),
            counts[..., None, :, None].astype(jnp.int32),
            states,
            jnp.round(place).astype(jnp.int32),
        )
        return out if out is None else jnp.moveaxis(out, -3, -2), (states, last, after.astype(states.dtype))

    def _chunked(self, params: Params, query: Any, key: Any, value: jax.Array, mask: Mask) -> jax.Array:
        out, (states, weights, _) = self._go_on(params, query, key, value, mask, 0)
        if mask.causal:
            return out
        return jnp.einsum("...nl,...nlvh,...tnh->...tnv", weights, states, precise(query))

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy by all pairs, with the tokens as its state and the levels of the published code."""
        step = np.log1p(np.exp(source @ weights["step_kernel"][:, head] + weights["step_bias"][head]))
        logits = weights["level_scale"][head] * (source @ weights["level_kernel"][:, head])
        decay = -step * np.exp(weights["forget_rate"][head])
        tokens = [*(state if isinstance(state, list) else []), (decay, step * value, key)]
        out, i, faded = 0.0, len(tokens) - 1, 0.0
        for j, (decay, written, known) in reversed(list(enumerate(tokens))):
            at = min(next((n for n in range(1, 64) if _is_at(n, i, j)), 0), self.levels - 1)
            out = out + np.log1p(np.exp(logits[at])) * np.exp(faded) * (query @ known) * written
            faded += decay
        return tokens, out


def _is_at(level: int, i: int, j: int) -> bool:
    """Tells whether key j is at a level above 0 for query i, as `construct_level_mask` of flash-linear-attention."""
    half = 2 ** (level - 1)
    first = i - i % half
    return i % 2**level >= half and j + half >= first and j < first
