"""Norms of hidden states, by their names in configs."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attention.activations import inverse_rms


class RmsNorm(nn.Module):
    """x / √(mean(x²) + ε) · w (Zhang & Sennrich 2019), computed in float32.

    Attributes:
      epsilon: ε.
      dtype: The dtype of the result.
      offset: Number added to the learned weights, which start at 1 − offset; it is 1 in Gemma.
    """

    epsilon: float
    dtype: DTypeLike = jnp.float32
    offset: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        scale = self.param("scale", nn.initializers.constant(1.0 - self.offset), (x.shape[-1],))
        wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        scale = (self.offset + scale).reshape((1,) * (x.ndim - 1) + (-1,))
        return (wide * inverse_rms(wide, self.epsilon) * scale).astype(self.dtype)


NORM_TYPES: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,
    "layer_without_bias": functools.partial(nn.LayerNorm, use_bias=False),
    "rms": RmsNorm,
    "rms_offset": functools.partial(RmsNorm, offset=1.0),
}
