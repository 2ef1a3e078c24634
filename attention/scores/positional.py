"""Positional attention: scores that depend only on positions, a table or a product of two tables (Wikipedia)."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention.errors import UsageError
from attention.forms import At
from attention.kernels.call import check_weight
from attention.mask import Mask
from attention.parameters import Parameter, Params, Sizes, check_flags, is_count
from attention.score import Score, attend


def positional_attention(
    value: Float[Array, "*B S N V"],
    table: Float[Array, "*N L L"],
    *,
    queries: int | None = None,
    mask: Mask | jax.Array | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(P + bias) v with a learned table P_ij over pairs of positions (Wikipedia; factorised, P = u wᵀ).

    Sequences of a batch share one softmax unless they have different masks or biases.

    Args:
      value: Values `(*B, S, N, V)`, S ≤ L.
      table: P, `(L, L)` for all heads or `(N, L, L)`; `factorised_table` computes it from two factors.
      queries: T ≤ L; S by default.
      mask: Which query may attend to which key; query i reads the row `query_offset + i` of P.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: `auto`, `xla`, `chunked` or `reference`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: there are more queries or keys than positions in the table, or the implementation is unknown.
      UnsupportedError: only other mechanisms have the implementation.
    """
    length = table.shape[-1]
    check_weight("table", table, (length, length), (value.shape[-2], length, length))
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    options |= {"return_weights": return_weights, "implementation": implementation}
    query = value if queries is None else jnp.zeros((*value.shape[:-3], queries, *value.shape[-2:]), value.dtype)
    return attend(Positional(table.ndim == 3), {"table": table}, query, None, value, **options)


def factorised_table(rows: Float[Array, "*N T R"], columns: Float[Array, "*N S R"]) -> Float[Array, "*N T S"]:
    """Returns P_ij = u_i·w_j, a table of rank R (factorised positional attention, Wikipedia)."""
    return jnp.einsum("...ir,...jr->...ij", rows, columns)


@dataclasses.dataclass(frozen=True)
class Positional(Score):
    """score = P_ij.

    Attributes:
      per_head: Whether each head has its own table; if not, all heads share one.
    """

    per_head: bool = True
    title = "Positional attention"
    reads_query = reads_key = False

    def __post_init__(self):
        super().__post_init__()
        check_flags(self, "per_head")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns the table P."""
        axes = self._heads(sizes) | {"queries": sizes.length, "keys": sizes.length}
        return {"table": Parameter(tuple(axes.values()), initializers.normal(0.02), tuple(axes))}

    def _heads(self, sizes: Sizes) -> dict[str, int]:
        return {"heads": sizes.heads} if self.per_head else {}

    def pair(self, params: Params, query: None, key: None, at: At) -> jax.Array:
        """Returns the table's number."""
        return params["table"]

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of the normalised table and of the weighted values."""
        pairs, ends = queries * keys * sizes.heads, (queries + keys) * sizes.heads * sizes.head
        return operations.Cost(pairs * 2 * sizes.head, pairs * self.weighing.flops, operations.ITEM * (pairs + ends))


@dataclasses.dataclass(frozen=True)
class FactorisedPositional(Positional):
    """score = u_i·w_j.

    Attributes:
      per_head: Whether each head has its own factors; if not, all heads share them.
      rank: R, the width of u_i and w_j.
    """

    rank: int = 8

    def __post_init__(self):
        super().__post_init__()
        if not is_count(self.rank):
            raise UsageError(f"The option rank must be a whole number above 0, not {self.rank!r}.")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns u and w, initialised so that their products are as small as the initial table."""
        init, declared = initializers.normal((0.02 / self.rank**0.5) ** 0.5), {}
        for name, side in (("rows", "queries"), ("columns", "keys")):
            axes = self._heads(sizes) | {side: sizes.length}
            declared[name] = Parameter((*axes.values(), self.rank), init, tuple(axes))
        return declared

    def pair(self, params: Params, query: None, key: None, at: At) -> jax.Array:
        """Returns the product of the factors."""
        return params["rows"] @ params["columns"]

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with the product of the factors."""
        table = operations.matmul(queries, self.rank, keys) * (sizes.heads if self.per_head else 1)
        return super().cost(sizes, queries, keys) + table
