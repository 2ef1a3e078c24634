"""Recurrences that choose what to keep by the token: Mamba-2's state space, Kimi delta attention, gated DeltaNet-2."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers

from attention.activations import unit
from attention.kernels.arrays import spread_heads
from attention.parameters import Parameter, Params, Sizes, lift
from attention.recurrences.gated import (
    GatedDelta,
    delta_step,
    forget_rates,
    low_rank,
    low_rank_parameters,
    projection,
    sigmoid,
    unit_silu,
)
from attention.recurrences.surrounded import Surrounded


def step_parameters(sizes: Sizes) -> dict[str, Parameter]:
    """Declares the arrays of `step_size`, from 0.001 to 0.1 over the heads at first."""
    kernel = Parameter((sizes.model, sizes.heads), initializers.lecun_normal())
    return {"step_kernel": kernel, "step_bias": Parameter((sizes.heads,), _first_steps)}


def _first_steps(key: Any, shape: tuple[int], dtype: Any) -> jax.Array:
    return jnp.log(jnp.expm1(jnp.geomspace(1e-3, 0.1, *shape, dtype=dtype)))


def step_size(params: Params, source: jax.Array) -> jax.Array:
    """Computes Δ = softplus(w·x + b), `(*B, S, N)`."""
    return jax.nn.softplus(source @ params["step_kernel"] + lift(params["step_bias"], source.ndim))


@dataclasses.dataclass(frozen=True)
class StateSpace(Surrounded):
    """W ← exp(−Δ exp(a)) W + Δ v kᵀ and W q, Δ = softplus(w·x + b), one of each per head (Dao & Gu 2024, 2405.21060).

    This is Mamba-2's state space duality, section 7, with queries, keys and values as its C, B and X. Its layer has
    `groups=1, state=128, conv=4, gate='gate_first', skip=True, epsilon=1e-5`.
    """

    title = "Attention as a state space"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the projection of Δ with b, whose softplus is from 0.001 to 0.1 at first, and a = log 1 … 16."""
        own = step_parameters(sizes) | {"forget_rate": Parameter((sizes.heads,), forget_rates)}
        return own | self.surroundings(sizes)

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes −Δ exp(a) and Δ, `(*B, S, N, 1)`."""
        step = step_size(params, source)
        return -(step * jnp.exp(lift(params["forget_rate"], source.ndim)))[..., None], step[..., None]

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: Any) -> jax.Array:
        """Fades W, and adds the value in proportion to the step."""
        decay, step = gates
        return jnp.exp(decay)[None] * state + jnp.outer(step * value, key)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes values in proportion to the step."""
        key, (decay, step) = key
        return query, key, spread_heads(value, step.shape[-2]) * step, None, decay

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q."""
        return state @ query

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        step = np.log1p(np.exp(source @ weights["step_kernel"][:, head] + weights["step_bias"][head]))
        state = np.exp(-step * np.exp(weights["forget_rate"][head])) * state + step * np.outer(value, key)
        return state, state @ query


@dataclasses.dataclass(frozen=True)
class KimiDelta(GatedDelta):
    """W ← W diag(α) (I − β k kᵀ) + β v kᵀ and W q/√H, with unit SiLU keys and queries (Kimi Linear, section 3).

    The report is arXiv:2510.26692. α = exp(−exp(a) softplus(W₂ W₁ x + b)), one for each column of each head, and
    β = s·σ(W_β x), with `strongest` = s as in `gated_delta`. W₁ has H outputs.
    """

    title = "Kimi delta attention"

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W₁, W₂, b, a, and W_β."""
        rest = super().parameters(sizes)
        forget = low_rank_parameters(dataclasses.replace(sizes, head=self.state or sizes.head), sizes.head, -4.0)
        return forget | {name: rest[name] for name in ("strength_kernel", "forget_rate")} | self.surroundings(sizes)

    def gates(self, params: Params, source: jax.Array) -> tuple[jax.Array, Any]:
        """Computes log α, `(*B, S, N, H)`, and β, `(*B, S, N)`."""
        rate = lift(jnp.exp(params["forget_rate"])[:, None], source.ndim + 1)
        return -rate * jax.nn.softplus(low_rank(params, source)), self.strength(params, source)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes as the gated delta rule, and scales queries."""
        query, *rest = super().writes(params, query, key, value)
        return query / math.sqrt(query.shape[-1]), *rest

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q/√H."""
        return super().read(params, state, query) / math.sqrt(query.size)

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        logits = source @ weights["forget_down_kernel"] @ weights["forget_up_kernel"][:, head]
        amount = np.log1p(np.exp(logits + weights["forget_bias"][head]))
        faded = state @ np.diag(np.exp(-np.exp(weights["forget_rate"][head]) * amount))
        logit = source @ weights["strength_kernel"][:, head]
        state, out = delta_step(faded, self.strongest, logit, key, value, query)
        return state, out / np.sqrt(len(key))


@dataclasses.dataclass(frozen=True)
class GatedDelta2(KimiDelta):
    """W ← W diag(α) (I − (b∘k) kᵀ) + (w∘v) kᵀ and W q/√H: it erases and writes by gates of their own.

    Gated DeltaNet-2 (Hatamizadeh et al. 2026, arXiv:2605.22791), as flash-linear-attention states it. k, q and α are
    those of `kimi_delta`, which is the case b = w = β; here b = s·σ(W_b x) is of each column and w = σ(W_w x) of each
    row of each head.
    """

    title = "Gated delta attention with two gates"
    alike = False

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W₁, W₂, b and a of α, and W_b and W_w."""
        rest = super().parameters(sizes)
        del rest["strength_kernel"]
        erase, write = projection(sizes, self.state or sizes.head), projection(sizes, sizes.head)
        return rest | {"erase_kernel": erase, "write_kernel": write}

    def strength(self, params: Params, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Computes b and w, `(*B, S, N, H)`."""
        erase, write = (jax.nn.sigmoid(jnp.tensordot(source, params[f"{n}_kernel"], 1)) for n in ("erase", "write"))
        return self.strongest * erase, write

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: Any) -> jax.Array:
        """Fades W, and puts w∘v in the place of what W stored for b∘k."""
        (decay, (erase, write)), key = gates, unit(jax.nn.silu(key))
        faded = jnp.exp(decay)[None] * state
        return faded + jnp.outer(write * value - faded @ (erase * key), key)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes w∘v less what the faded W stores for b∘k."""
        query, key, value, (erase, write), decay = super().writes(params, query, key, value)
        key, value = spread_heads((key, value), erase.shape[-2])
        return query, key, write * value, erase * key, decay

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        logits = source @ weights["forget_down_kernel"] @ weights["forget_up_kernel"][:, head]
        amount = np.log1p(np.exp(logits + weights["forget_bias"][head]))
        key, query = unit_silu(key), unit_silu(query)
        erase = self.strongest * sigmoid(source @ weights["erase_kernel"][:, head])
        write = sigmoid(source @ weights["write_kernel"][:, head])
        state = state @ np.diag(np.exp(-np.exp(weights["forget_rate"][head]) * amount))
        state = state @ (np.eye(len(key)) - np.outer(erase * key, key)) + np.outer(write * value, key)
        return state, state @ query / np.sqrt(len(key))
