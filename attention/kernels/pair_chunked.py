"""`implementation='chunked'` of the pairwise family: tiles of queries and keys, so that memory is linear in the length."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.errors import UnsupportedError
from attention.kernels import tiles
from attention.kernels.call import PairCall

NARROW = 32  # weights of a layer


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
    """The MLP on each pair: unit by unit where the layers are narrow, as products of matrices where they are wide.

    Attributes:
      activation: Name.
      per_head: Whether each head has weights of its own.
    """

    activation: str
    per_head: bool

    def __call__(self, rows: jax.Array, columns: jax.Array, weights: Any) -> jax.Array:
        """Scores `(b, N, R, C)` of `(b, N, R, M)` and `(b, N, C, M)`."""
        layers, vector = weights
        score = functools.partial(_narrow if is_narrow(layers, vector) else _wide, ACTIVATIONS[self.activation])
        if self.per_head:
            score = jax.vmap(score, in_axes=(1, 1, 0), out_axes=1)
        return score(rows.astype(vector.dtype), columns.astype(vector.dtype), weights)

    def vjp(self, rows: jax.Array, columns: jax.Array, weights: Any) -> tuple[jax.Array, Any]:
        """The same, and its pullback."""
        return jax.vjp(self, rows, columns, weights)


def is_narrow(layers: tuple[tuple[jax.Array, jax.Array | None], ...], vector: jax.Array) -> bool:
    """Whether each layer has so few weights that it is computed unit by unit."""
    return max([kernel.shape[-2] * kernel.shape[-1] for kernel, _ in layers] + [vector.shape[-1]]) <= NARROW


def _narrow(activation, rows, columns, weights) -> jax.Array:
    """Every unit is an array of pairs, `(..., R, C)`, that XLA need not store: what makes it is fused with its use."""
    layers, vector = weights
    units = [rows[..., :, None, m] + columns[..., None, :, m] for m in range(rows.shape[-1])]
    units = [activation(unit) for unit in units]
    for kernel, bias in layers:
        sums = [_weighted(units, kernel[:, k]) for k in range(kernel.shape[1])]
        units = [activation(x if bias is None else x + bias[k]) for k, x in enumerate(sums)]
    return _weighted(units, vector)


def _weighted(units: list[jax.Array], weights: jax.Array) -> jax.Array:
    return sum(weight * unit for weight, unit in zip(weights, units, strict=True))


def _wide(activation, rows, columns, weights) -> jax.Array:
    """Units last, `(..., R, C, M)`."""
    layers, vector = weights
    hidden = activation(rows[..., :, None, :] + columns[..., None, :, :])
    for kernel, bias in layers:
        hidden = hidden @ kernel
        hidden = activation(hidden if bias is None else hidden + bias.reshape((1,) * (hidden.ndim - 1) + bias.shape))
    return hidden @ vector
