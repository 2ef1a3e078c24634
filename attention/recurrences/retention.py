"""Retention: linear attention whose state fades by a rate of each head (RetNet, Sun et al. 2023, 2307.08621, eq. 6)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.activations import inverse_rms
from attention.parameters import Parameter, Params, Sizes
from attention.recurrences.recurrence import CHUNKED, Recurrence


@dataclasses.dataclass(frozen=True)
class Retention(Recurrence):
    """W ← γ W + v kᵀ and W q/√H, normed for each head (eq. 8), with γ = 1 − 2^(−5−n) for head n from 0 on.

    The paper also rotates queries and keys (`model.positions=rotary` does) and has a gate after it, which is a layer's.
    """

    title = "Retention"
    traits = CHUNKED

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares log(1/γ − 1), which is learned from the paper's values on."""
        init = lambda key, shape, dtype: -jnp.log(2.0 ** (5 + jnp.arange(shape[0])) - 1).astype(dtype)  # noqa: E731
        return {"decay": Parameter((sizes.heads,), init, ("heads",))}

    def write(self, params: Params, state: jax.Array, key: jax.Array, value: jax.Array, gates: None) -> jax.Array:
        """Computes γ W + v kᵀ."""
        return jax.nn.sigmoid(-params["decay"]) * state + jnp.outer(value, key)

    def recall(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q/√H."""
        return state @ query * query.size**-0.5

    def finish(self, out: jax.Array) -> jax.Array:
        """Divides the output by its root mean square."""
        return out * inverse_rms(out, 1e-6)

    def writes(self, params: Params, query: jax.Array, key: Any, value: jax.Array) -> tuple[Any, ...]:
        """Writes values as they are into what has faded by γ."""
        decay = jax.nn.log_sigmoid(-params["decay"])
        decay = jnp.broadcast_to(decay[:, None], (*key[0].shape[:-2], len(decay), 1))
        return query * query.shape[-1] ** -0.5, key[0], value, None, decay

    def read(self, params: Params, state: jax.Array, query: jax.Array) -> jax.Array:
        """Computes W q/√H over its root mean square."""
        return self.finish(self.recall(params, state, query))

    def oracle(self, weights: Any, head: int, state: Any, source: Any, key: Any, value: Any, query: Any) -> Any:
        """Takes a step in NumPy."""
        state = state / (1 + np.exp(weights["decay"][head])) + np.outer(value, key)
        out = state @ query / np.sqrt(len(key))
        return state, out / np.sqrt(np.mean(out**2) + 1e-6)
