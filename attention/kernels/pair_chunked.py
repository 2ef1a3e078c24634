"""`implementation='chunked'` of the pairwise family: tiles of queries and keys, memory linear in both."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from attention.activations import ACTIVATIONS
from attention.errors import UnsupportedError
from attention.kernels import plan, tiles
from attention.kernels.call import PairCall
from attention.kernels.reference import precise

# Layers up to these sizes are computed unit by unit. Compared with matrix products, hidden layers of (2, 1) and (4, 4)
# were 1.5 to 3 times as fast, and (16, 8) and one layer of 64 half as fast.
NARROW_WEIGHTS, NARROW_UNITS = 32, 8


def pair(call: PairCall) -> tuple[jax.Array, None]:
    """Returns the output `(*B, T, N, V)`, without weights.

    Args:
      call: The call.

    Raises:
      UnsupportedError: `tiles.why_not` has a reason.
    """
    if reason := tiles.why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    score = (NarrowScore if is_narrow(call) else WideScore)(call.activation, per_head=call.vector.ndim == 2)
    return tiles.attend_in_tiles(
        call, call.query, call.key, (call.layers, call.vector), score, plan.rule(call, widest(call))
    ), None


def widest(call: PairCall) -> int:
    """Returns the number of units in the widest layer."""
    return max(call.query.shape[-1], *(kernel.shape[-1] for kernel, _ in call.layers), 1)


def is_narrow(call: PairCall) -> bool:
    """Returns whether the layers have so few units and weights that they are computed unit by unit."""
    products = [kernel.shape[-2] * kernel.shape[-1] for kernel, _ in call.layers]
    return widest(call) <= NARROW_UNITS and max(products, default=0) <= NARROW_WEIGHTS


@dataclasses.dataclass(frozen=True)
class WideScore:
    """The MLP on each pair as matrix products, with the axis of units last.

    Attributes:
      activation: Name of the activation.
      per_head: Whether each head has its own weights.
    """

    activation: str
    per_head: bool

    def split(self, x: jax.Array) -> Any:
        """Returns `x` in the precision of the scores."""
        return precise(x)

    def join(self, parts: Any) -> jax.Array:
        """Returns the array unchanged."""
        return parts

    def __call__(self, rows: Any, columns: Any, weights: Any) -> jax.Array:
        """Returns the scores `(b, N, R, C)`."""
        score = functools.partial(self._one_head, ACTIVATIONS[self.activation])
        if self.per_head:
            score = jax.vmap(score, in_axes=(1, 1, 0), out_axes=1)
        return score(rows, columns, weights)

    def vjp(self, rows: Any, columns: Any, weights: Any) -> tuple[jax.Array, Any]:
        """Returns the scores and their pullback."""
        return jax.vjp(self, rows, columns, weights)

    def _one_head(self, activation, rows, columns, weights):
        layers, vector = weights
        hidden = activation(rows[..., :, None, :] + columns[..., None, :, :])
        for kernel, bias in layers:
            hidden = _times(hidden, kernel)
            if bias is not None:
                hidden = hidden + bias.reshape((1,) * (hidden.ndim - 1) + bias.shape)
            hidden = activation(hidden)
        return hidden @ vector


class NarrowScore(WideScore):
    """The MLP unit by unit: each unit is an array over pairs, which XLA fuses with its use and need not store.

    Queries and keys are one array for each unit, so that vector instructions run along the pairs.
    """

    def split(self, x: jax.Array) -> Any:
        """Returns one array for each unit."""
        return [super(NarrowScore, self).split(x[..., unit]) for unit in range(x.shape[-1])]

    def join(self, parts: Any) -> jax.Array:
        """Stacks the arrays of the units."""
        return jnp.stack(parts, -1)

    def _one_head(self, activation, rows, columns, weights):
        layers, vector = weights
        units = [
            activation(row[..., :, None] + column[..., None, :]) for row, column in zip(rows, columns, strict=True)
        ]
        for kernel, bias in layers:
            sums = [_weighted(units, kernel[:, k]) for k in range(kernel.shape[1])]
            units = [activation(x if bias is None else x + bias[k]) for k, x in enumerate(sums)]
        return _weighted(units, vector)


def _weighted(units: list[jax.Array], weights: jax.Array) -> jax.Array:
    return sum(weight * unit for weight, unit in zip(weights, units, strict=True))


@jax.custom_vjp
def _times(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns `x @ kernel`, with a gradient of the kernel that multiplies contiguous arrays.

    XLA on a CPU is twice as fast with such a product. The barriers keep it from undoing the transposition.
    """
    return x @ kernel


def _times_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return x @ kernel, (x, kernel)


def _times_backward(residuals: tuple[jax.Array, jax.Array], gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, kernel = residuals
    transposed = jax.lax.optimization_barrier(gradient.reshape(-1, gradient.shape[-1]).T)
    d_kernel = jax.lax.optimization_barrier(transposed @ x.reshape(-1, x.shape[-1])).T
    return gradient @ kernel.T, d_kernel


_times.defvjp(_times_forward, _times_backward)
