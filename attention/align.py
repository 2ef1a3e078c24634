"""Super Attention's alignment: a learnable mixing of the values over tokens (Hosseini, eq. 22)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention.kernels.call import check_rows, check_weight
from attention.mask import BY_POSITION, Mask
from attention.parameters import lift


def align_values(
    value: Float[Array, "*B S N H"],
    kernel: Float[Array, "*N L L"],
    bias: Float[Array, "*N L"] | None = None,
    *,
    mask: Mask | None = None,
    rows: int | None = None,
) -> Float[Array, "*B R N H"]:
    """Returns V'_i = Σ_j W^A_ij V_j + b_i for every head, with one W^A for all heads or one for each head.

    A sequence shorter than L uses the leading block of W^A. A causal mask makes W^A lower-triangular. Values beyond
    `key_lengths` are zeroed first, because W^A would otherwise carry them to the real tokens.

    Args:
      value: Values `(*B, S, N, H)`, S ≤ L.
      kernel: W^A, `(L, L)` or `(N, L, L)`.
      bias: b, `(L,)` or `(N, L)`: one number for each token position.
      mask: Only causal masks and key lengths are honoured.
      rows: R, the number of tokens from the mask's `query_offset` on whose aligned values are returned, for decoding;
        by default all S tokens.

    Returns:
      Aligned values `(*B, R, N, H)`, where R is S by default.

    Raises:
      UsageError: W^A has another shape, S or a requested row is beyond L, the mask is of another kind, or its lengths
        are of another batch.
    """
    mask = mask or Mask()
    mask.require(BY_POSITION, by="Super Attention (an aligned mechanism)")
    length, heads, _ = value.shape[-3:]
    built = kernel.shape[-1]
    check_weight("kernel (W^A)", kernel, (built, built), (heads, built, built))
    why = "W^A is a table over token positions"
    check_rows("Super Attention", why, built, Mask() if rows is None else mask, rows or 0, length)
    first, rows = (0, length) if rows is None else (mask.query_offset, rows)
    mask.check(value.shape[:-3], rows, length)
    if bias is not None:
        check_weight("bias", bias, kernel.shape[:-1])
    if mask.key_lengths is not None:
        value = jnp.where(mask.real_keys(length)[..., None, None], value, jnp.zeros((), value.dtype))

    def cut(x, axis):
        return jax.lax.dynamic_slice_in_dim(x, first, rows, axis)

    kernel = cut(kernel, kernel.ndim - 2)[..., :length]
    if mask.causal:
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (rows, length), axis) for axis in (0, 1))
        seen = lift(column <= first + row, kernel.ndim)
        kernel = jnp.where(seen, kernel, 0.0)
    equation = "ts,...snh->...tnh" if kernel.ndim == 2 else "nts,...snh->...tnh"
    aligned = jnp.einsum(equation, kernel.astype(value.dtype), value)
    if bias is None:
        return aligned
    bias = cut(bias, bias.ndim - 1).astype(value.dtype)
    by_token = bias.T if bias.ndim == 2 else bias[:, None]
    return aligned + lift(by_token[..., None], aligned.ndim)
