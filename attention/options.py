"""The options that every attention function takes, checked once."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from attention.errors import UsageError
from attention.mask import Mask
from attention.types import Rate, check


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call; the public functions take them as keywords.

    Attributes:
      mask: Which query may attend to which key: a `Mask`, a boolean array that broadcasts to the scores (True means
        may attend), or None for all pairs.
      bias: Added to the scores; broadcasts to `(*B, N, T, S)`.
      dropout_rate: Fraction of the weights that are zeroed, at most 0.999.
      dropout_key: Random key of dropout; needed unless the rate is 0.
      return_weights: Whether to return the weights before dropout too.
      implementation: `auto` (the best that supports the call), `xla`, `chunked` (tiles that bound the memory; no
        weights), `cudnn`, `pallas` or `reference`; a named one raises if it does not support the call.
        `chunked(128, 256)` takes tiles of 128 queries and 256 keys.
      layer: The number of the layer among those of its stack, from 0 on, for scores that depend on it.
      depth: The number of layers.

    Raises:
      UsageError: the dropout rate is below 0 or above 0.999, dropout has no key, or the mask is no mask.
    """

    mask: Any = None
    bias: Float[Array, "*#B #N #T #S"] | None = None
    dropout_rate: float = 0.0
    dropout_key: PRNGKeyArray | None = None
    return_weights: bool = False
    implementation: str = "auto"
    layer: int | Int[Array, ""] = 0
    depth: int = 1

    def __post_init__(self):
        check(Rate, float(self.dropout_rate), "The attention dropout rate")
        if self.dropout_rate and self.dropout_key is None:
            raise UsageError(f"Attention dropout of {self.dropout_rate} needs a dropout_key.")
        object.__setattr__(self, "mask", as_mask(self.mask))


def takes_options(function: Callable) -> Callable:
    """Shows the fields of `Options` as a function's last keywords in place of its `**options`."""
    signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
    *first, _ = signature.parameters.values()
    last = [
        inspect.Parameter(f.name, keyword, default=f.default, annotation=f.type) for f in dataclasses.fields(Options)
    ]
    function.__signature__ = signature.replace(parameters=[*first, *last])
    return function


def as_mask(mask: Any) -> Mask:
    """Makes a `Mask`: of a boolean array, which allows where it is True; of None, which allows all pairs."""
    if mask is None or isinstance(mask, Mask):
        return mask or Mask()
    dtype = getattr(mask, "dtype", None)
    if dtype != jnp.bool_:
        what = f"an array of {dtype}" if dtype is not None else repr(mask)
        raise UsageError(
            f"A mask must be an attention.Mask or a boolean array, True where a query may attend, not {what}."
        )
    return Mask(dense=jnp.asarray(mask))
