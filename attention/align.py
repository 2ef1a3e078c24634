"""Super Attention's alignment: a learnable mixing of the values over tokens (004, eq. 22)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention.errors import UsageError
from attention.mask import Mask

HONOURED = {"causal", "key_lengths"}


def align_values(
    value: Float[Array, "*B S N H"],
    kernel: Float[Array, "*N L L"],
    bias: Float[Array, "*N L"] | None = None,
    *,
    mask: Mask | None = None,
) -> Float[Array, "*B S N H"]:
    """V'_i = Σ_j W^A_ij V_j + b_i for every head, with one W^A for all heads or one each.

    A sequence shorter than L uses the leading block of W^A. A causal mask makes W^A lower-triangular, and keys
    beyond `key_lengths` are zeroed first, or they would reach the real tokens through W^A.

    Args:
      value: Values `(*B, S, N, H)`, S ≤ L.
      kernel: W^A, `(L, L)` or `(N, L, L)`.
      bias: b, `(L,)` or `(N, L)`: one number a token position.
      mask: Causal and key lengths are honoured.

    Returns:
      Aligned values of the same shape.

    Raises:
      UsageError: S is greater than L, or the mask has other kinds than those.
    """
    mask = mask or Mask()
    mask.require(HONOURED, by="Super Attention (an aligned mechanism)")
    length, built = value.shape[-3], kernel.shape[-1]
    if length > built:
        raise UsageError(
            f"Super Attention was built for sequences of at most {built} tokens, but this one has {length}; "
            "its W^A is a table over token positions: build the model at the greater length."
        )
    if mask.key_lengths is not None:
        value = jnp.where(mask.real_keys(length)[..., None, None], value, jnp.zeros((), value.dtype))
    kernel = kernel[..., :length, :length]
    if mask.causal:
        kernel = jnp.tril(kernel)
    equation = "ts,...snh->...tnh" if kernel.ndim == 2 else "nts,...snh->...tnh"
    aligned = jnp.einsum(equation, kernel.astype(value.dtype), value)
    if bias is None:
        return aligned
    return aligned + _per_token(bias[..., :length].astype(value.dtype), aligned.ndim)


def _per_token(bias: Float[Array, "*N L"], rank: int) -> Float[Array, "..."]:
    """`(L,)` or `(N, L)` as an array of values' rank that broadcasts to `(*B, L, N, H)`."""
    by_token = bias.T if bias.ndim == 2 else bias[:, None]
    return by_token.reshape((1,) * (rank - 3) + (*by_token.shape, 1))
