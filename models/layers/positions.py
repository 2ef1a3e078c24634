"""Position encodings: those added to embeddings, and the spec strings of rotary ones."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention import specs
from attention.errors import UsageError, unknown
from attention.scores.rotary import Rotary

ADDED = ("learned", "sinusoidal", "none")
HALVES = "sinusoidal_halves"  # all sines before all cosines, as in Marian's weights
ANY = (
    "Position encoding: `learned`, `sinusoidal`, `none`, or `rotary` with the options of "
    "`attention.scores.rotary.Rotary`. `rotary(base=500000.0)|none` gives one to each layer; the last repeats."
)
BASE = 10_000.0  # as in Vaswani et al. 2017


def sinusoids(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Alternates sin and cos of position / 10000^(2i/D), from position `first` on (Vaswani et al. 2017, §3.5)."""
    angles = _angles(length, width, first)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


def sinusoids_in_halves(length: int, width: int, first: int | jax.Array = 0) -> Float[Array, "L D"]:
    """Puts all sines of `sinusoids` before all cosines, as in Marian's weights."""
    angles = _angles(length, width, first)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[:, :width]


def _angles(length: int, width: int, first: int | jax.Array) -> Float[Array, "L half"]:
    rates = jnp.exp(-math.log(BASE) * jnp.arange(0, width, 2) / width)
    return (first + jnp.arange(length))[:, None] * rates[None, :]


def after_padding(tokens: Int[Array, "B L"], padding: int) -> Int[Array, "B L"]:
    """Numbers real tokens from padding + 1 on, and gives padding, wherever it stands, its own id `padding`.

    This is Fairseq's `make_positions`, with which RoBERTa was trained.
    """
    real = (tokens != padding).astype(jnp.int32)
    return padding + jnp.cumsum(real, axis=1) * real


WAVES = {"sinusoidal": sinusoids, HALVES: sinusoids_in_halves}


def rotary_layers(text: str, depth: int) -> tuple[Rotary | None, ...]:
    """Reads the rotary positions of each layer; None where there are none.

    Args:
      text: A position encoding that is added to embeddings, or a spec string of `rotary` and `none`.
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
    """Raises UsageError where a sequence has more tokens than there are learned positions."""
    if tokens > length:
        raise UsageError(f"Positions were learned for {length} tokens, but this sequence has {tokens}.")


class Positions(nn.Module):
    """Adds a position encoding to embeddings.

    Attributes:
      kind: A name of `ADDED`, or `sinusoidal_halves`; rotary positions add nothing here.
      length: Number of positions in a learned table.
    """

    kind: str
    length: int

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], first: int | jax.Array = 0) -> Float[Array, "B L D"]:
        """Adds the encoding to tokens from position `first` on; see `check_learned`."""
        tokens, width = x.shape[-2:]
        if self.kind in WAVES:
            return x + WAVES[self.kind](tokens, width, first)[None].astype(x.dtype)
        if self.kind != "learned":
            return x
        check_learned(tokens, self.length)
        table = self.param("table", nn.initializers.normal(0.02), (1, self.length, width))
        return x + jax.lax.dynamic_slice_in_dim(table, first, tokens, axis=1).astype(x.dtype)
