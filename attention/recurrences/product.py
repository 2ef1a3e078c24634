"""DeltaProduct: several steps of the delta rule for each token."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.activations import unit
from attention.kernels.arrays import spread_heads
from attention.parameters import Parameter, Params, Sizes
from attention.recurrences.gated import projection, sigmoid, unit_silu
from attention.recurrences.linear import Strongest
from attention.recurrences.recurrence import CHUNKED, Recurrence
from attention.types import Count


@dataclasses.dataclass(frozen=True)
class DeltaProduct(Recurrence):
    """W ← W + β (v − W φ(k)) φ(k)ᵀ for each of n keys of a token, and W φ(q) (Siems et al. 2025, arXiv:2502.10297).

    The transition is a product of n generalised Householder matrices, with β = s·σ(w·x) for each and φ as in `delta`.
    The first key and value are the layer's; the others have projections of their own.

    Attributes:
      steps: n.
      strongest: s. Above 1 the state can change its sign, up to 2.
    """

    steps: Count = 2
    strongest: Strongest = 2.0
    title = "DeltaProduct"
    alike = False
    traits = CHUNKED

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the projections of n − 1 more keys and values, and of β."""
        more = {f"more_{part}_kernel": projection(sizes, self.steps - 1, sizes.head) for part in ("keys", "values")}
        return (more if self.steps > 1 else {}) | {"strength_kernel": projection(sizes, self.steps)}

    def gates(self, params: Params, source: jax.Array) -> dict[str, jax.Array]:
        """Computes more keys and values, `(*B, S, N, n − 1, H)`, and β, `(*B, S, N, n)`."""
        made = {name.removesuffix("_kernel"): jnp.tensordot(source, x, 1) for name, x in params.items()}
        return made | {"strength": self.strongest * jax.nn.sigmoid(made["strength"])}

    def _steps(self, key: jax.Array, value: jax.Array, gates: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Stacks the n keys and values in front of their numbers, with β."""
        pairs = (key, "more_keys"), (value, "more_values")
        keys, values = (jnp.concatenate([x[..., None, :], *([gates[n]] if n in gates else [])], -2) for x, n in pairs)
        return unit(jax.nn.silu(keys)), values, gates["strength"]

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: Any) -> jax.Array:
        """Takes n steps of the delta rule."""
        for feature, target, strength in zip(*self._steps(key, value, gates), strict=True):
            state = state + strength * jnp.outer(target - state @ feature, feature)
        return state

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W φ(q)."""
        return state @ unit(jax.nn.silu(query))

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes n times a token."""
        key, gates = key
        heads = gates["strength"].shape[-2]
        steps = self._steps(spread_heads(key, heads), spread_heads(value, heads), gates)
        return unit(jax.nn.silu(query)), *(in_turn(x, 2) for x in steps[:2]), in_turn(steps[2], 1), None

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        keys, values = [key], [value]
        for step in range(self.steps - 1):
            keys.append(source @ weights["more_keys_kernel"][:, head, step])
            values.append(source @ weights["more_values_kernel"][:, head, step])
        for step in range(self.steps):
            beta = self.strongest * sigmoid(source @ weights["strength_kernel"][:, head, step])
            key = unit_silu(keys[step])
            state = state @ (np.eye(len(key)) - beta * np.outer(key, key)) + beta * np.outer(values[step], key)
        return state, state @ unit_silu(query)


def in_turn(x: jax.Array, width: int) -> jax.Array:
    """Brings what a token writes in turn, `(*B, S, N, n, …)` with `width` axes from n on, to `(*B, n·S, N, …)`."""
    moved = jnp.moveaxis(x, -width, -width - 1)
    return moved.reshape(*moved.shape[: -width - 2], -1, *moved.shape[-width:])
