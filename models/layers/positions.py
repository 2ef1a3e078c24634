"""Position encodings that are added to embeddings, and the names of those that turn queries and keys."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention import specs
from attention.errors import UsageError, unknown
from attention.scores.rotary import Rotary

ADDED = ("learned", "sinusoidal", "none")
HALVES = "sinusoidal_halves"  # the order of Marian's published weights
ANY = (
    "How tokens know where they are: `learned`, `sinusoidal`, `none`, or `rotary`, with the options of "
    "`attention.scores.rotary.Rotary`; `rotary(base=500000.0)|none` gives one to each layer, the last repeating."
)
BASE = 10_000.0  # in Vaswani et al. and in Su et al.


def sinusoids(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Computes sin and cos of position / 10000^(2i/D) alternately, from `first` on (Vaswani et al. 2017, §3.5)."""
    angles = _angles(length, width, first)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def sinusoids_in_halves(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Puts all sines of `sinusoids` before all cosines, as in Marian and its weights."""
    angles = _angles(length, width, first)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :width]


def _angles(length: int, width: int, first: int | jax.Array) -> Float[Array, "L half"]:
    rates = jnp.exp(-math.log(BASE) * jnp.arange(0, width, 2) / width)
    return (first + jnp.arange(length))[:, None] * rates[None, :]


def after_padding(tokens: Int[Array, "B L"], padding: int) -> Int[Array, "B L"]:
    """Numbers real tokens from padding + 1 on, wherever padding is; the position of padding is its id `padding`.

    This is Fairseq's `make_positions`, with which RoBERTa's published weights were trained.
    """
    real = (tokens != padding).astype(jnp.int32)
    return padding + jnp.cumsum(real, axis=1) * real


WAVES = {"sinusoidal": sinusoids, HALVES: sinusoids_in_halves}


def rotary_layers(text: str, depth: int) -> tuple[Rotary | None, ...]:
    """Reads the rotary positions of each layer, None for those without.

    Args:
      text: Positions that are added to embeddings; or for each layer `rotary` with options or `none`, joined by `|`,
        the last of which repeats.
      depth: Number of layers.

    Raises:
      UsageError: there is no such position encoding, or there are more items than layers.
    """
    if text in (*ADDED, HALVES):
        return (None,) * depth
    return specs.one_each(text, _rotary, "layer", depth)


def _rotary(item: specs.SpecItem) -> Rotary | None:
    if item == specs.SpecItem("none"):
        return None
    if item.name != "rotary":
        raise unknown("position encoding", item.name, (*ADDED, "rotary"))
    return specs.build(item, {"rotary": Rotary}, "position encoding")


def check_learned(tokens: int, length: int) -> None:
    """Raises UsageError unless positions were learned for so many tokens."""
    if tokens > length:
        raise UsageError(f"Positions were learned for {length} tokens, but this sequence has {tokens}.")


class Positions(nn.Module):
    """Adds a position encoding.

    Attributes:
      kind: A name of `ADDED`, `sinusoidal_halves`, or rotary positions, which attention layers apply.
      length: The number of positions in a learned table.
    """

    kind: str
    length: int

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], first: int | jax.Array = 0) -> Float[Array, "B L D"]:
        """Adds the encoding; the first token is at the position `first`.

        Raises:
          UsageError: there are more tokens than positions in the learned table.
        """
        tokens, width = x.shape[-2:]
        if self.kind in WAVES:
            return x + WAVES[self.kind](tokens, width, first)[None].astype(x.dtype)
        if self.kind != "learned":
            return x
        check_learned(tokens, self.length)
        table = self.param("table", nn.initializers.normal(0.02), (1, self.length, width))
        return x + jax.lax.dynamic_slice_in_dim(table, first, tokens, axis=1).astype(x.dtype)
