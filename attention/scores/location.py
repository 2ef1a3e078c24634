"""Location-based attention: a fully-connected layer on the query alone gives the coefficient of each position."""

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attention.errors import UsageError
from attention.kernels import reference, xla
from attention.kernels.call import SoftmaxCall, check_implementation, check_rows, check_weight, common
from attention.mask import Mask

IMPLEMENTATIONS = {"reference": reference.weigh_values, "xla": xla.weigh_values}


def location_attention(
    query: Float[Array, "*B T N H"],
    value: Float[Array, "*B S N V"],
    kernel: Float[Array, "H L"],
    kernel_bias: Float[Array, "L"],
    *,
    mask: Mask | None = None,
    bias: Float[Array, "*#B #N #T #S"] | None = None,
    dropout_rate: float = 0.0,
    dropout_key: PRNGKeyArray | None = None,
    return_weights: bool = False,
    implementation: str = "auto",
) -> Float[Array, "*B T N V"] | tuple[Float[Array, "*B T N V"], Float[Array, "*B N T S"]]:
    """Returns softmax(W q + b + bias) v, which uses no keys (Luong et al. 2015, eq. 9; variant 5 in Wikipedia).

    Args:
      query: Queries `(*B, T, N, H)`.
      value: Values `(*B, S, N, V)`, S ≤ L.
      kernel: W, with one column for each position of the values.
      kernel_bias: b, one number for each position.
      mask: Which query may attend to which key.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: `auto`, `xla` or `reference`.

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
    name, _ = check_implementation(implementation, tuple(IMPLEMENTATIONS), "Location-based attention")
    length, keys = kernel.shape[-1], value.shape[-3]
    check_weight("kernel", kernel, (query.shape[-1], length))
    check_weight("kernel_bias", kernel_bias, (length,))
    check_rows("Location-based attention", "layer has one output a token position", length, Mask(), 0, keys)
    options = {"mask": mask, "bias": bias, "dropout_rate": dropout_rate, "dropout_key": dropout_key}
    call = SoftmaxCall(**common(*query.shape[-3:-1], value, return_weights=return_weights, **options))
    scores = jnp.einsum("...tnh,hs->...nts", reference.precise(query), kernel[:, :keys])
    scores += kernel_bias[:keys].reshape((1,) * (scores.ndim - 1) + (keys,))
    out, weights = IMPLEMENTATIONS["xla" if name == "auto" else name](call, scores)
    return (out, weights) if return_weights else out
