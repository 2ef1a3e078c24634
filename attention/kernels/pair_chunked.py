"""`implementation='chunked'` of the pairwise family: tiles of queries and keys, so that memory is linear in the length."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.errors import UnsupportedError
from attention.kernels import tiles
from attention.kernels.call import PairCall


def why_not(call: PairCall) -> str:
    """What about this call is not supported, as part of a sentence; empty where it is."""
    return "it returns no weights" if call.return_weights else ""


def pair(call: PairCall, tiling: tiles.Tiling | None = None) -> tuple[jax.Array, None]:
    """Output `(*B, T, N, V)`; no weights.

    Args:
      call: What is wanted.
      tiling: Sizes of a tile, by rule where it is not given.

    Raises:
      UnsupportedError: the call wants weights.
    """
    if reason := why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    score = PairScore(call.activation, call.vector.ndim == 2)
    return tiles.attend(call, call.query, call.key, (call.layers, call.vector), score, tiling or rule(call)), None


def rule(call: PairCall) -> tiles.Tiling:
    return tiles.Tiling(128, 256, 1)


@dataclasses.dataclass(frozen=True)
class PairScore:
    """The MLP on each pair, hidden units first: the axis of pairs is what a processor's vectors run along.

    Attributes:
      activation: Name.
      per_head: Whether each head has weights of its own.
    """

    activation: str
    per_head: bool

    def __call__(self, rows: jax.Array, columns: jax.Array, weights: Any) -> jax.Array:
        """Scores `(b, N, R, C)` of `(b, N, R, M)` and `(b, N, C, M)`."""
        score = self._one_head
        if self.per_head:
            score = jax.vmap(score, in_axes=(1, 1, 0), out_axes=1)
        return score(rows, columns, weights)

    def vjp(self, rows, columns, weights):
        """The same, and its pullback."""
        return jax.vjp(self, rows, columns, weights)

    def _one_head(self, rows, columns, weights):
        layers, vector = weights
        activation = ACTIVATIONS[self.activation]
        rows, columns = (jnp.moveaxis(x.astype(vector.dtype), -1, 0) for x in (rows, columns))
        hidden = activation(rows[..., None] + columns[..., None, :])
        for kernel, bias in layers:
            hidden = jnp.einsum("m...,mk->k...", hidden, kernel)
            if bias is not None:
                hidden = hidden + bias.reshape(-1, *(1,) * (hidden.ndim - 1))
            hidden = activation(hidden)
        return jnp.einsum("m...,m->...", hidden, vector)
