"""The options that every attention function takes, checked once."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attention.errors import UsageError
from attention.mask import Mask


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call; the public functions take them as keywords.

    Attributes:
      mask: A `Mask`, a boolean array that broadcasts to the scores (True means may attend), or None for all pairs.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, in [0, 1).
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: Its name, see `attention.dot_product_attention`.

    Raises:
      UsageError: the dropout rate is outside [0, 1), dropout has no key, or the mask is no mask.
    """

    mask: Any = None
    bias: Float[Array, "*#B #N #T #S"] | None = None
    dropout_rate: float = 0.0
    dropout_key: PRNGKeyArray | None = None
    return_weights: bool = False
    implementation: str = "auto"

    def __post_init__(self):
        if not 0.0 <= self.dropout_rate < 1.0:
            raise UsageError(
                f"The attention dropout rate must be at least 0 and below 1, but it is {self.dropout_rate}."
            )
        if self.dropout_rate and self.dropout_key is None:
            raise UsageError(f"Attention dropout of {self.dropout_rate} needs a dropout_key.")
        object.__setattr__(self, "mask", as_mask(self.mask))


def as_mask(mask: Any) -> Mask:
    """Returns a mask as a `Mask`: of a boolean array, one that allows where the array is True; of None, all pairs."""
    if mask is None or isinstance(mask, Mask):
        return mask or Mask()
    dtype = getattr(mask, "dtype", None)
    if dtype != jnp.bool_:
        what = f"an array of {dtype}" if dtype is not None else repr(mask)
        raise UsageError(
            f"A mask must be an attention.Mask or a boolean array, True where a query may attend, not {what}."
        )
    return Mask(dense=jnp.asarray(mask))
