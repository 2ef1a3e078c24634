"""`implementation='chunked'` of the dot family: tiles of queries and keys, a few sequences at a time.

Scores stay in the cache and the whole `(B, N, T, S)` never exist.
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
    """Output `(*B, T, N, V)`; no weights.

    Args:
      call: What is wanted.

    Raises:
      UnsupportedError: the call wants weights.
    """
    if reason := tiles.why_not(call):
        raise UnsupportedError(f"implementation='chunked' cannot do this call: {reason}; use 'xla' or 'auto'.")
    score = DotScore(call.scale, call.precision)
    return tiles.attend_in_tiles(call, call.query, call.key, (), score, plan.rule(call, 1)), None


@dataclasses.dataclass(frozen=True)
class DotScore:
    """Products of rows and columns, times a scale.

    Attributes:
      scale: The factor.
      precision: Of the products and their gradients.
    """

    scale: float
    precision: jax.lax.PrecisionLike = None

    def split(self, x: jax.Array) -> jax.Array:
        """As it is."""
        return x

    def join(self, parts: jax.Array) -> jax.Array:
        """As it is."""
        return parts

    def __call__(self, rows: jax.Array, columns: jax.Array, weights: Any) -> jax.Array:
        """Scores `(b, K, R, C)` of `(b, K, R, H)` and `(b, K, C, H)`."""
        if score_dtype(rows) == rows.dtype:
            return self._product("bkrh,bkch->bkrc", rows * self.scale, columns)
        return self._product("bkrh,bkch->bkrc", rows, columns) * self.scale  # scaled rows would be rounded once more

    def vjp(self, rows: jax.Array, columns: jax.Array, weights: Any) -> tuple[jax.Array, Callable]:
        """The same, and its pullback, which rounds gradients of scores to the inputs' dtype for its products."""

        def pull(gradient: jax.Array) -> tuple[jax.Array, jax.Array, Any]:
            gradient = gradient.astype(rows.dtype)
            d_rows = self._product("bkrc,bkch->bkrh", gradient, columns) * self.scale
            # XLA on a CPU multiplies arrays as they lie in memory twice as fast as a transposed one: here the small one
            # is turned, and the barriers keep XLA from undoing it.
            turned = jax.lax.optimization_barrier(rows.swapaxes(2, 3))
            d_columns = jax.lax.optimization_barrier(self._product("bkhr,bkrc->bkhc", turned, gradient))
            return d_rows, d_columns.swapaxes(2, 3) * self.scale, weights

        return self(rows, columns, weights), pull

    def _product(self, equation: str, x: jax.Array, y: jax.Array) -> jax.Array:
        return plan.product(equation, x, y, self.precision)
