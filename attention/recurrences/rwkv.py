"""RWKV-7 (Peng et al. 2025, arXiv:2503.14456): a token fades a state, moves one direction of it, and writes to it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import unit
from attention.kernels.arrays import spread_heads
from attention.parameters import Parameter, Params, Sizes
from attention.recurrences.gated import low_rank, low_rank_parameters
from attention.recurrences.product import in_turn
from attention.recurrences.recurrence import CHUNKED, Recurrence
from attention.types import Count


@dataclasses.dataclass(frozen=True)
class RWKV7(Recurrence):
    """W ← W (diag(w) − κ (a∘κ)ᵀ) + v k̃ᵀ and W q, normed for each head, the generalised delta rule of RWKV-7.

    w = exp(−e^(−1/2) σ(W₂ tanh(W₁ x) + b)) and a = σ(A₂ A₁ x + c) for each column; κ = k∘ξ over its norm, and
    k̃ = k∘(1 + (a − 1)∘η), with learned ξ and η of each head. As flash-linear-attention has it, without what its layer
    has around: mixing with the token before, the first layer's values, a bonus for the token itself, and a gate.

    Attributes:
      rank: The width between W₁ and W₂ and between A₁ and A₂.
    """

    rank: Count = 16
    title = "RWKV-7"
    traits = CHUNKED

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W₁, W₂ and b, A₁, A₂ and c, ξ and η."""
        own = {"removal": 0.71, "replacement": 1.02}
        return (
            low_rank_parameters(sizes, self.rank, -4.0)
            | low_rank_parameters(sizes, self.rank, 0.0, "rate")
            | {n: Parameter((sizes.heads, sizes.head), initializers.constant(x), ("heads",)) for n, x in own.items()}
        )

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes log w and a, `(*B, S, N, H)`."""
        decay = -math.exp(-0.5) * jax.nn.sigmoid(low_rank(params, source, inner=jnp.tanh))
        return decay, jax.nn.sigmoid(low_rank(params, source, "rate"))

    def _keys(self, key: jax.Array, rate: jax.Array, removal: Any, replacement: Any) -> tuple[jax.Array, jax.Array]:
        """Computes κ and k̃."""
        return unit(key * removal), key * (1 + (rate - 1) * replacement)

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: Any) -> jax.Array:
        """Fades W, moves what it stored for κ, and adds the value."""
        decay, rate = gates
        removed, added = self._keys(key, rate, params["removal"], params["replacement"])
        kept = state * jnp.exp(decay)[None] - jnp.outer(state @ removed, rate * removed)
        return kept + jnp.outer(value, added)

    def recall(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q."""
        return state @ query

    def finish(self, out: jax.Array) -> jax.Array:
        """Takes the mean from the output of a head, and divides by the standard deviation."""
        centred = out - jnp.mean(out, -1, keepdims=True)
        return centred * jax.lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-5 * out.shape[-1])

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q, normed."""
        return self.finish(self.recall(params, state, query))

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes twice: what W stored for κ before it faded, from κ/w, and the value."""
        key, (decay, rate) = key
        key, value = spread_heads((key, value), rate.shape[-2])
        own = (jnp.broadcast_to(params[name], rate.shape) for name in ("removal", "replacement"))
        removed, added = self._keys(key, rate, *own)
        pairs = (rate * removed, added), (0 * value, value), (removed * jnp.exp(-decay), 0 * key), (decay, 0 * decay)
        return query, *(in_turn(jnp.stack(pair, -2), 2) for pair in pairs)

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        inner = np.tanh(source @ weights["forget_down_kernel"]) @ weights["forget_up_kernel"][:, head]
        kept = np.exp(-np.exp(-0.5) / (1 + np.exp(-inner - weights["forget_bias"][head])))
        logits = source @ weights["rate_down_kernel"] @ weights["rate_up_kernel"][:, head]
        rate = 1 / (1 + np.exp(-logits - weights["rate_bias"][head]))
        removed = key * weights["removal"][head] / np.linalg.norm(key * weights["removal"][head])
        state = state @ (np.diag(kept) - np.outer(removed, rate * removed))
        state = state + np.outer(value, key * (1 + (rate - 1) * weights["replacement"][head]))
        out = state @ query
        return state, (out - out.mean()) / np.sqrt(out.var() + 1e-5 * len(out))
