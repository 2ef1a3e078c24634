"""`implementation='chunked'` of the dot family: tiles of queries and keys, a few sequences at a time.

Scores stay in the cache, and the whole array `(B, N, T, S)` is never stored.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from attention.errors import UnsupportedError
from attention.kernels import plan, tiles
from attention.kernels.call import DotCall
from attention.kernels.reference import score_dtype


def dot(call: DotCall) -> tuple[jax.Array, None]:
    """Returns the output `(*B, T, N, V)`, without weights.

    Args:
      call: The call.

    Raises:
      UnsupportedError: `tiles.why_not` has a reason.
    """
    if reason := tiles.why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    score = DotScore(call.scale, call.precision)
    return tiles.attend_in_tiles(call, call.query, call.key, (), score, plan.rule(call, 1)), None


@dataclasses.dataclass(frozen=True)
class DotScore:
    """Scores that are products of rows and columns, times a scale.

    Attributes:
      scale: The factor.
      precision: Precision of the products and their gradients.
    """

    scale: float
    precision: jax.lax.PrecisionLike = None

    def split(self, x: jax.Array) -> jax.Array:
        """Returns `x` unchanged."""
        return x

    def join(self, parts: jax.Array) -> jax.Array:
        """Returns the array unchanged."""
        return parts

    def __call__(self, rows: jax.Array, columns: jax.Array, weights: Any) -> jax.Array:
        """Returns scores `(b, K, R, C)` of `(b, K, R, H)` and `(b, K, C, H)`."""
        if score_dtype(rows) == rows.dtype:
            return self._product("bkrh,bkch->bkrc", rows * self.scale, columns)
        return self._product("bkrh,bkch->bkrc", rows, columns) * self.scale  # scaling the rows would round them again

    def vjp(self, rows: jax.Array, columns: jax.Array, weights: Any) -> tuple[jax.Array, Callable]:
        """Returns the scores and their pullback, which rounds gradients of scores to the dtype of rows."""

        def pull(gradient: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
            gradient = gradient.astype(rows.dtype)
            d_rows = self._product("bkrc,bkch->bkrh", gradient, columns) * self.scale
            # XLA on a CPU multiplies contiguous arrays twice as fast as transposed ones. So the small array is
            # transposed, and the barriers keep XLA from undoing it.
            transposed = jax.lax.optimization_barrier(rows.swapaxes(2, 3))
            d_columns = jax.lax.optimization_barrier(self._product("bkhr,bkrc->bkhc", transposed, gradient))
            return d_rows, d_columns.swapaxes(2, 3) * self.scale, weights

        return self(rows, columns, weights), pull

    def _product(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
        return plan.product(equation, x, y, self.precision)
