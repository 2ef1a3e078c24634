"""Super Attention's alignment: a learnable mixing of the values over tokens (Hosseini, eq. 22)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention.kernels.call import check_rows, check_weight
from attention.mask import Mask

HONOURED = {"causal", "key_lengths"}


def align_values(
    value: Float[Array, "*B S N H"],
    kernel: Float[Array, "*N L L"],
    bias: Float[Array, "*N L"] | None = None,
    *,
    mask: Mask | None = None,
    rows: int | None = None,
) -> Float[Array, "*B R N H"]:
    """V'_i = Σ_j W^A_ij V_j + b_i for every head, with one W^A for all heads or one each.

    A sequence shorter than L uses the leading block of W^A. A causal mask makes W^A lower-triangular, and keys
    beyond `key_lengths` are zeroed first, or they would reach the real tokens through W^A.

    Args:
      value: Values `(*B, S, N, H)`, S ≤ L.
      kernel: W^A, `(L, L)` or `(N, L, L)`.
      bias: b, `(L,)` or `(N, L)`: one number a token position.
      mask: Causal and key lengths are honoured.
      rows: Only the aligned values of so many tokens from the mask's `query_offset` on, as decoding wants them; all
        S from the first where it is not given.

    Returns:
      Aligned values `(*B, S, N, H)`, or of `rows` tokens.

    Raises:
      UsageError: W^A has another shape, S or a row asked for is beyond L, or the mask has other kinds than those, or
        lengths of another batch.
    """
    mask = mask or Mask()
    mask.require(HONOURED, by="Super Attention (an aligned mechanism)")
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
        seen = (column <= first + row).reshape((1,) * (kernel.ndim - 2) + (rows, length))
        kernel = jnp.where(seen, kernel, 0.0)
    equation = "ts,...snh->...tnh" if kernel.ndim == 2 else "nts,...snh->...tnh"
    aligned = jnp.einsum(equation, kernel.astype(value.dtype), value)
    if bias is None:
        return aligned
    return aligned + _per_token(cut(bias, bias.ndim - 1).astype(value.dtype), aligned.ndim)


def _per_token(bias: Float[Array, "*N L"], rank: int) -> Float[Array, "..."]:
    """`(L,)` or `(N, L)` as an array of values' rank that broadcasts to `(*B, L, N, H)`."""
    by_token = bias.T if bias.ndim == 2 else bias[:, None]
    return by_token.reshape((1,) * (rank - 3) + (*by_token.shape, 1))
