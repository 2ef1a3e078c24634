"""Positional attention: weights that depend on the positions alone, a table or a product of two tables (001)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float, PRNGKeyArray

from attention import flops
from attention.errors import UsageError
from attention.kernels import reference, xla
from attention.kernels.call import Call, check_implementation, check_rows, check_weight, common
from attention.mask import Mask
from attention.score import Parameter, Params, Score, Sizes, check_flags, is_count

IMPLEMENTATIONS = {"reference": reference.attend, "xla": xla.attend}


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
    """softmax(P + bias) v with a learned table P_ij over pairs of positions (001; factorised, P = u wᵀ).

    Without a mask or bias of their own, all sequences of a batch share one softmax.

    Args:
      value: Values `(*B, S, N, V)`, S ≤ L.
      table: P, `(L, L)` for all heads or `(N, L, L)`; `factorised_table` makes one of two factors.
      queries: T ≤ L; S where it is not given.
      mask: Who may attend to whom; query i reads the row `query_offset + i` of P.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Key of those zeros; needed where the rate is not 0.
      return_weights: Also return the weights before dropout.
      implementation: `auto`, `xla` or `reference`.

    Returns:
      The output, and the weights where they are asked for.

    Raises:
      UsageError: more queries or keys than the table has positions, or an unknown implementation.
      UnsupportedError: an implementation that others have.
    """
    check_implementation(implementation, tuple(IMPLEMENTATIONS), "Positional attention")
    *batch, keys, heads, _ = value.shape
    length = table.shape[-1]
    check_weight("table", table, (length, length), (heads, length, length))
    queries = keys if queries is None else queries
    check_rows("Positional attention", "table is over token positions", length, mask or Mask(), queries, keys)
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    call = Call(**common(queries, heads, value, return_weights=return_weights, **options))
    rows = jax.lax.dynamic_slice_in_dim(table, call.mask.query_offset, queries, table.ndim - 2)
    scores = reference.precise(rows[..., :keys])
    scores = jnp.broadcast_to(scores, (heads, queries, keys)).reshape((1,) * len(batch) + (heads, queries, keys))
    out, weights = (xla.attend if implementation == "auto" else IMPLEMENTATIONS[implementation])(call, scores)
    return (out, weights) if return_weights else out


def factorised_table(rows: Float[Array, "*N L R"], columns: Float[Array, "*N L R"]) -> Float[Array, "*N L L"]:
    """P_ij = u_i·w_j, of rank R (factorised positional attention, 001)."""
    return jnp.einsum("...ir,...jr->...ij", rows, columns)


@dataclasses.dataclass(frozen=True)
class Positional(Score):
    """score = P_ij.

    Attributes:
      per_head: One table for each head, in place of one for all.
    """

    per_head: bool = True
    implementations = tuple(IMPLEMENTATIONS)
    ties_values = False

    def __post_init__(self):
        check_flags(self, "per_head")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """P."""
        shape = (sizes.length, sizes.length)
        return {"table": Parameter((sizes.heads, *shape) if self.per_head else shape, initializers.normal(0.02))}

    def prepare_key(self, params: Params, key: Any, source: jax.Array, implementation: str) -> None:
        """Nothing: no key is looked at."""
        return

    def table(self, params: Params) -> jax.Array:
        """P as an array."""
        return params["table"]

    def attend(self, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """`positional_attention`; of the queries only their number counts."""
        return positional_attention(value, self.table(params), queries=query.shape[-3], **options)

    def cost(self, sizes: Sizes, queries: int, keys: int) -> flops.Cost:
        """Softmax of the table, then weighted values."""
        pairs, ends = queries * keys * sizes.heads, (queries + keys) * sizes.heads * sizes.head
        return flops.Cost(pairs * 2 * sizes.head, pairs * flops.SOFTMAX_FLOPS, 4 * (pairs + ends))


@dataclasses.dataclass(frozen=True)
class FactorisedPositional(Positional):
    """score = u_i·w_j.

    Attributes:
      per_head: Factors for each head, in place of the same for all.
      rank: R, the width of u_i and w_j.
    """

    rank: int = 8

    def __post_init__(self):
        super().__post_init__()
        if not is_count(self.rank):
            raise UsageError(f"The option rank must be a whole number above 0, not {self.rank!r}.")

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """u and w, such that their products start as small as a table does."""
        shape = (sizes.length, self.rank)
        init = initializers.normal((0.02 / self.rank**0.5) ** 0.5)
        one = Parameter((sizes.heads, *shape) if self.per_head else shape, init)
        return {"rows": one, "columns": one}

    def table(self, params: Params) -> jax.Array:
        """u wᵀ."""
        return factorised_table(params["rows"], params["columns"])

    def cost(self, sizes: Sizes, queries: int, keys: int) -> flops.Cost:
        """The whole table's product of the factors too."""
        table = flops.matmul(sizes.length, self.rank, sizes.length) * (sizes.heads if self.per_head else 1)
        return super().cost(sizes, queries, keys) + table
