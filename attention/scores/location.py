"""Location-based attention: a fully-connected layer on the query alone gives the coefficient of each position."""

import dataclasses
from typing import Any

import jax
from jax.nn import initializers
from jaxtyping import Array, Float

from attention.errors import UsageError
from attention.forms import At
from attention.kernels.call import check_weight
from attention.options import takes_options
from attention.parameters import Parameter, Params, Sizes
from attention.score import Score, Traits, attend


@takes_options
def location_attention(
    query: Float[Array, "*B T N H"],
    value: Float[Array, "*B S N V"],
    kernel: Float[Array, "H L"],
    kernel_bias: Float[Array, "L"],
    **options: Any,
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Computes softmax(W q + b + bias) v, which uses no keys (Luong et al. 2015, eq. 9; variant 5 in Wikipedia).

    Args:
      query: Queries `(*B, T, N, H)`.
      value: Values `(*B, S, N, V)`, S ≤ L.
      kernel: W, with one column for each position of the values.
      kernel_bias: b, one number for each position.
      **options: The fields of `attention.options.Options`; implementations: `auto`, `xla`, `chunked`, `pallas` and
        `reference`.

    Returns:
      The output, and the weights if `return_weights` is set.

    Raises:
      UsageError: there are more values than W has positions, the shapes do not fit, or the implementation is unknown.
      UnsupportedError: only other mechanisms have the implementation.
    """
    same_batch = query.shape[:-3] == value.shape[:-3] and query.shape[-2:-1] == value.shape[-2:-1]
    if min(query.ndim, value.ndim) < 3 or not same_batch:
        raise UsageError(
            "Location-based attention takes (*batch, length, heads, width) arrays, query and value of the same batch "
            f"and heads, but was given query {query.shape}, value {value.shape}."
        )
    length = kernel.shape[-1]
    check_weight("kernel", kernel, (query.shape[-1], length))
    check_weight("kernel_bias", kernel_bias, (length,))
    return attend(Location(), {"rows": kernel.T, "bias": kernel_bias}, query, None, value, **options)


@dataclasses.dataclass(frozen=True)
class Location(Score):
    """score = w_j·q_i + b_j, with a row of W for each position of the source."""

    title = "Location-based attention"
    traits = Traits(reads_key=False)

    def parameters(self, sizes: Sizes) -> dict[str, Parameter]:
        """Declares W and b."""
        rows = Parameter((sizes.length, sizes.head), initializers.lecun_normal(in_axis=-1, out_axis=-2), ("keys",))
        return {"rows": rows, "bias": Parameter((sizes.length,), initializers.zeros, ("keys",))}

    def pair(self, params: Params, query: jax.Array, key: None, at: At) -> jax.Array:
        """Computes the coefficient of the key's position."""
        return query @ params["rows"] + params["bias"]
