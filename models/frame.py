"""The frame of trials: embeddings, perhaps a short convolution, blocks with any causal mechanism, and a classifier.

A mechanism's own parts, such as gates, belong to it; everything else is the same for all, and is declared here.
"""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention import Mask, operations
from attention.operations import Cost
from attention.types import Count, Example, Sentinel, at_most
from models.fields import field
from models.layers import stack
from models.layers.output import Output
from models.layers.positions import ANY, Positions, sinusoids
from models.layers.projections import Dense, look_up
from models.transformer import TransformerConfig


@dataclasses.dataclass(frozen=True)
class FrameConfig(TransformerConfig):
    """The config of the frame."""

    name: str = "frame"
    depth: int = 2
    heads: int = 1
    mlp: int = 0
    positions: Annotated[str, Example("rotary")] = field("none", ANY)
    dropout: float = 0.0
    attention_dropout: float = 0.0
    convolution: Annotated[Count, at_most(1000), Sentinel(0, "none")] = field(
        0, "Taps of the causal convolution over embeddings before the first block, channel by channel."
    )

    def build(
        self, vocabulary: int, channels: int, length: int, pooled: bool, dtype: DTypeLike = jnp.float32
    ) -> "Frame":
        return Frame(self, vocabulary, channels, length, pooled, dtype)

    def cost(self, vocabulary: int, channels: int, length: int, pooled: bool) -> Cost:
        decoder = operations.linear(length, self.width, self.width) * 2 if pooled else Cost()
        taps = Cost(0, 2 * length * self.width * self.convolution)
        head = operations.linear(length, self.width, vocabulary)
        return self.cost_of_blocks(length) + decoder + taps + head


class Frame(nn.Module):
    """A model from tokens, one or several at each position, to the logits of each position's answer.

    If it is `pooled`, every answer is made from the last position's state alone and its own position, as in the
    autoencoder of Poli et al. 2024 (MAD). Its `length` is ℓ, the largest number of positions.
    """

    config: FrameConfig
    vocabulary: int
    channels: int
    length: int
    pooled: bool
    dtype: DTypeLike = jnp.float32

    def __call__(self, tokens: Int[Array, "B T C"], train: bool = False) -> Float[Array, "B T vocabulary"]:
        """Computes the logits in float32."""
        return self.output(tokens, train).logits()

    @nn.compact
    def output(self, tokens: Int[Array, "B T C"], train: bool = False) -> Output:
        """Computes the output; see `__call__`."""
        config = self.config
        embed = nn.Embed(self.vocabulary, config.width, dtype=self.dtype, name="embed")
        x = sum(look_up(embed, tokens[..., channel]) for channel in range(self.channels))
        x = Positions(config.positions, self.length, name="positions")(x)
        if config.convolution:
            start = nn.initializers.normal(config.convolution**-0.5)
            x = x + mixed(x, self.param("taps", start, (config.convolution, config.width)).astype(x.dtype))
        x, _ = stack.run(config.blocks(self.length, self.dtype), x, Mask(causal=True), train, scan=config.scan)
        x = self._decoded(x) if self.pooled else x
        x = config.norm_layer(self.dtype, "norm")(x)
        return Dense((self.vocabulary,), dtype=self.dtype, name="head").output(x)

    def _decoded(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Makes a vector for each position from that of the last one, by two layers."""
        x = x[:, -1:] + sinusoids(x.shape[1], x.shape[2]).astype(x.dtype)[None]
        for layer in range(2):
            normed = self.config.norm_layer(self.dtype, f"norm_decoder_{layer}")(x)
            x = nn.gelu(Dense((x.shape[-1],), dtype=self.dtype, name=f"decoder_{layer}")(normed))
        return x


def mixed(x: Float[Array, "B T D"], taps: Float[Array, "k D"]) -> Float[Array, "B T D"]:
    """Computes Σ_j taps_j ⊙ x_{t-j}: a causal convolution of each channel by itself, with zeros before the start."""
    length, reach = x.shape[1], len(taps)
    before = jnp.pad(x, ((0, 0), (reach - 1, 0), (0, 0)))
    return sum(taps[None, None, j] * before[:, reach - 1 - j : reach - 1 - j + length] for j in range(reach))
