"""Positional attention: scores that depend only on positions, a table or a product of two tables (Wikipedia)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.forms import At
from attention.kernels.call import check_weight
from attention.options import takes_options
from attention.parameters import Parameter, Params, Sizes
from attention.score import Score, Traits, attend
from attention.types import Count


@takes_options
def positional_attention(
    value: Float[Array, "*B S N V"],
    table: Float[Array, "*N L L"],
    *,
    queries: int | None = None,
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(P + bias) v with a learned table P_ij over pairs of positions (Wikipedia; factorised, P = u wᵀ).

    Sequences of a batch share one softmax unless they have different masks or biases.

    Args:
      value: Values `(*B, S, N, V)`, S ≤ L.
      table: P, `(L, L)` for all heads or `(N, L, L)`; `factorised_table` computes it from two factors.
      queries: T ≤ L; S by default.
      **options: The fields of `attention.options.Options`; query i reads the row `query_offset + i` of P, by the mask.
        The implementations are `auto`, `xla`, `chunked` and `reference`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: there are more queries or keys than positions in the table, or the implementation is unknown.
      UnsupportedError: only other mechanisms have the implementation.
    """
    length = table.shape[-1]
    check_weight("table", table, (length, length), (value.shape[-2], length, length))
    query = value if queries is None else jnp.zeros((*value.shape[:-3], queries, *value.shape[-2:]), value.dtype)
    return attend(Positional(table.ndim == 3), {"table": table}, query, None, value, **options)


def factorised_table(rows: Float[Array, "*N T R"], columns: Float[Array, "*N S R"]) -> Float[Array, "*N T S"]:
    """Computes P_ij = u_i·w_j, a table of rank R (factorised positional attention, Wikipedia)."""
    return jnp.einsum("...ir,...jr->...ij", rows, columns)


@dataclasses.dataclass(frozen=True)
class Positional(Score):
    """score = P_ij.

    Attributes:
      per_head: Whether each head has its own table; if not, all heads share one.
    """

    per_head: bool = True
    title = "Positional attention"
    traits = Traits(reads_query=False, reads_key=False, kernels=("chunked",))

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares the table P."""
        axes = self._heads(sizes) | {"queries": sizes.length, "keys": sizes.length}
        return {"table": Parameter(tuple(axes.values()), initializers.normal(0.02), tuple(axes))}

    def _heads(self, sizes: Sizes) -> dict[str, int]:
        return {"heads": sizes.heads} if self.per_head else {}

    def pair(self, params: Params, query: None, key: None, at: At) -> jax.Array:
        """Reads the table's number."""
        return params["table"]


@dataclasses.dataclass(frozen=True)
class FactorisedPositional(Positional):
    """score = u_i·w_j.

    Attributes:
      per_head: Whether each head has its own factors; if not, all heads share them.
      rank: R, the width of u_i and w_j.
    """

    rank: Count = 8
    traits = Traits(reads_query=False, reads_key=False)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares u and w, initialised so that their products are as small as the initial table."""
        init, declared = initializers.normal((0.02 / self.rank**0.5) ** 0.5), {}
        for name, side in (("rows", "queries"), ("columns", "keys")):
            axes = self._heads(sizes) | {side: sizes.length}
            declared[name] = Parameter((*axes.values(), self.rank), init, tuple(axes))
        return declared

    def pair(self, params: Params, query: None, key: None, at: At) -> jax.Array:
        """Multiplies the factors."""
        return params["rows"] @ params["columns"]
