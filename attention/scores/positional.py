"""Positional attention: scores that depend only on positions, a table or a product of two tables (Wikipedia)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import operations
from attention.errors import UsageError
from attention.kernels import reference, xla
from attention.kernels.call import SoftmaxCall, check_implementation, check_rows, check_weight, common
from attention.mask import Mask
from attention.score import Parameter, Params, Score, Sizes, check_flags, is_count

IMPLEMENTATIONS = {"reference": reference.weigh_values, "xla": xla.weigh_values}


def positional_attention(
    value: Float[Array, "*B S N V"],
    table: Float[Array, "*N L L"],
    *,
    queries: int | None = None,
    mask: Mask | None = None,
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
      implementation: `auto`, `xla` or `reference`.

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
    queries = value.shape[-3] if queries is None else queries
    return _attend(value, queries, length, lambda first, keys: _rows(table, first, queries)[..., :keys], **options)


def factorised_table(rows: Float[Array, "*N T R"], columns: Float[Array, "*N S R"]) -> Float[Array, "*N T S"]:
    """Returns P_ij = u_i·w_j, a table of rank R (factorised positional attention, Wikipedia)."""
    return jnp.einsum("...ir,...jr->...ij", rows, columns)


def _attend(
    value: jax.Array,
    queries: int,
    built: int,
    block: Callable[[Any, int], jax.Array],
    *,
    mask: Mask | None,
    return_weights: bool,
    implementation: str,
    **options: Any,
) -> Any:
    """Computes `positional_attention`; `block(first row, columns)` returns the part of the table that is needed."""
    check_implementation(implementation, tuple(IMPLEMENTATIONS), "Positional attention")
    *batch, keys, heads, _ = value.shape
    check_rows("Positional attention", "table is over token positions", built, mask or Mask(), queries, keys)
    call = SoftmaxCall(**common(queries, heads, value, mask=mask, return_weights=return_weights, **options))
    scores = reference.precise(block(call.mask.query_offset, keys))
    scores = jnp.broadcast_to(scores, (heads, queries, keys)).reshape((1,) * len(batch) + (heads, queries, keys))
    out, weights = (xla.weigh_values if implementation == "auto" else IMPLEMENTATIONS[implementation])(call, scores)
    return (out, weights) if return_weights else out


def _rows(x: jax.Array, first: Any, count: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, first, count, x.ndim - 2)


@dataclasses.dataclass(frozen=True)
class Positional(Score):
    """score = P_ij.

    Attributes:
      per_head: Whether each head has its own table; if not, all heads share one.
    """

    per_head: bool = True
    implementations = tuple(IMPLEMENTATIONS)
    reads_query = reads_key = False

    def __post_init__(self):
        check_flags(self, "per_head")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Returns the table P."""
        shape = (sizes.length, sizes.length)
        return {"table": Parameter((sizes.heads, *shape) if self.per_head else shape, initializers.normal(0.02))}

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Returns `positional_attention`, which uses only the number of queries."""
        return positional_attention(value, params["table"], queries=query.shape[-3], **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost of the softmax of the table and of the weighted values."""
        pairs, ends = queries * keys * sizes.heads, (queries + keys) * sizes.heads * sizes.head
        return operations.Cost(
            pairs * 2 * sizes.head, pairs * operations.SOFTMAX_FLOPS, operations.ITEM * (pairs + ends)
        )


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
        shape = (sizes.length, self.rank)
        init = initializers.normal((0.02 / self.rank**0.5) ** 0.5)
        factor = Parameter((sizes.heads, *shape) if self.per_head else shape, init)
        return {"rows": factor, "columns": factor}

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """Returns `positional_attention` with the part of u wᵀ that these queries and keys need."""
        rows, columns, queries = params["rows"], params["columns"], query.shape[-3]

        def block(first, keys):
            return factorised_table(_rows(rows, first, queries), columns[..., :keys, :])

        return _attend(value, queries, rows.shape[-2], block, **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> operations.Cost:
        """Returns the cost with the product of the factors."""
        table = operations.matmul(queries, self.rank, keys) * (sizes.heads if self.per_head else 1)
        return super().cost(sizes, queries, keys) + table
