"""Position encodings, which are added to embeddings or rotate queries and keys."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention.errors import UsageError

ADDED = ("learned", "sinusoidal", "none")
HALVES = "sinusoidal_halves"  # the order of Marian's published weights
POSITIONS = (*ADDED, "rotary")
BASE = 10_000.0  # in Vaswani et al. and in Su et al.


def sinusoids(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Returns sin and cos of position / 10000^(2i/D) alternately, from `first` on (Vaswani et al. 2017, §3.5)."""
    angles = _angles(length, width, first)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def sinusoids_in_halves(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Returns the numbers of `sinusoids` with all sines before all cosines, as in Marian and its weights."""
    angles = _angles(length, width, first)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :width]


def rotate(x: Float[Array, "*B L N H"], first: int | jax.Array) -> Float[Array, "*B L N H"]:
    """Rotates each pair (x_i, x_{i+H/2}) by position / 10000^(2i/H) (Su et al. 2021, eq. 34; halves as in GPT-NeoX).

    Products of rotated queries and keys depend only on the difference of their positions.

    Args:
      x: Queries or keys.
      first: Position of the first token.

    Raises:
      UsageError: the width of a head is odd.
    """
    length, _, width = x.shape[-3:]
    if width % 2:
        raise UsageError(f"Rotary positions turn pairs of numbers, but a head is {width} wide; choose an even width.")
    angles = jnp.expand_dims(_angles(length, width, first), (*range(x.ndim - 3), -2))
    low, high = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)  # in float32, so that products with bfloat16 inputs are too
    return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1).astype(x.dtype)


def _angles(length: int, width: int, first: int | jax.Array) -> Float[Array, "L half"]:
    rates = jnp.exp(-math.log(BASE) * jnp.arange(0, width, 2) / width)
    return (first + jnp.arange(length))[:, None] * rates[None, :]


def after_padding(tokens: Int[Array, "B L"], padding: int) -> Int[Array, "B L"]:
    """Returns the positions of RoBERTa: real tokens count from padding + 1 on, and padding has position `padding`.

    This is Fairseq's `make_positions`, with which RoBERTa's published weights were trained.

    Args:
      tokens: Sequences with padding at any place.
      padding: The id of the padding token.
    """
    real = (tokens != padding).astype(jnp.int32)
    return padding + jnp.cumsum(real, axis=1) * real


WAVES = {"sinusoidal": sinusoids, HALVES: sinusoids_in_halves}


class Positions(nn.Module):
    """Adds a position encoding.

    Attributes:
      kind: A name of `ADDED`, `sinusoidal_halves`, or `rotary`, which attention layers apply.
      length: The number of positions in a learned table.
    """

    kind: str
    length: int

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], first: int | jax.Array = 0) -> Float[Array, "B L D"]:
        """Returns `x` with its encoding; the first token is at the position `first`.

        Raises:
          UsageError: there are more tokens than positions in the learned table.
        """
        tokens, width = x.shape[-2:]
        if self.kind in ("none", "rotary"):
            return x
        if self.kind in WAVES:
            return x + WAVES[self.kind](tokens, width, first)[None].astype(x.dtype)
        if tokens > self.length:
            raise UsageError(f"Positions were learned for {self.length} tokens, but this sequence has {tokens}.")
        table = self.param("table", nn.initializers.normal(0.02), (1, self.length, width))
        return x + jax.lax.dynamic_slice_in_dim(table, first, tokens, axis=1).astype(x.dtype)
