"""A small residual network of convolutions with channel or spatial attention in each block, or none.

All blocks of a stage have the same number of channels. From stage to stage the sides of the map halve and the channels
double. A block is x + attention(conv(ReLU(norm(conv(ReLU(norm(x))))))). Both convolutions are 3 x 3 (He et al. 2016,
pre-activation), and attention is on the residual branch (Hu et al. 2018, Fig. 3; Woo et al. 2018, Fig. 3). Norms are
GroupNorms, so that an example's output does not depend on other examples.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attention import operations, specs
from attention.channel import Cbam, Spatial, SqueezeExcitation
from attention.operations import Cost
from attention.types import Count, Multiple, Positive, Rate, at_most
from models.config import ModelConfig
from models.fields import LAYERS, field
from models.layers.blocks import constrain
from models.layers.dropout import Dropout
from models.layers.projections import Dense

Gate = SqueezeExcitation | Spatial
GATES: dict[str, Callable[..., Gate | None]] = {
    "none": lambda: None,
    "squeeze_excitation": SqueezeExcitation,
    "spatial": Spatial,
    "cbam": Cbam,
}


@dataclasses.dataclass(frozen=True)
class CNNConfig(ModelConfig):
    """The config of a residual network of convolutions."""

    name: str = field("cnn", "Name of the model.")
    attention: str = field(
        "none",
        "Attention of the blocks: `none`, `squeeze_excitation(ratio=16)`, `spatial(kernel=7)` or `cbam(ratio=16, "
        "kernel=7)`; `none|cbam` gives one to each stage; the last repeats.",
    )
    stages: Annotated[Count, at_most(16)] = field(3, "Number of stages.")
    depth: Annotated[Count, at_most(LAYERS)] = field(1, "Number of blocks in each stage.")
    width: Annotated[Count, Multiple("groups")] = field(
        16, "Channels of the first stage; each further stage has twice as many."
    )
    groups: Count = field(4, "Number of groups of channels that are normalised together.")
    norm_epsilon: Positive = field(1e-6, "The norms' ε.")
    dropout: Rate = field(0.1, "Rate on the classifier's inputs.")

    def __post_init__(self):
        super().__post_init__()
        for stage, gate in enumerate(self.gates):
            if gate:
                gate.check(self.channels(stage))

    @functools.cached_property
    def gates(self) -> tuple[Gate | None, ...]:
        """The attention of each stage, None where there is none."""
        build = functools.partial(specs.build, makers=GATES, what="attention of a cnn")
        return specs.one_each(self.attention, build, "stage", self.stages)

    def channels(self, stage: int) -> int:
        """Counts the channels of a stage; stages count from 0."""
        return self.width * 2**stage

    def build(self, image_shape: tuple[int, int, int], classes: int, dtype: DTypeLike = jnp.float32) -> "CNN":
        return CNN(self, classes, image_shape[0] * image_shape[1], dtype)

    def cost(self, image_shape: tuple[int, int, int], classes: int) -> Cost:
        return self.cost_of_map(image_shape) + operations.linear(1, self.channels(self.stages - 1), classes)

    def norm_layer(self, dtype: DTypeLike, name: str) -> nn.Module:
        """Makes a norm, as a submodule of the module that calls it."""
        return nn.GroupNorm(self.groups, epsilon=self.norm_epsilon, dtype=dtype, name=name)

    def cost_of_map(self, image_shape: tuple[int, int, int]) -> Cost:
        """Counts the cost of the last stage's map."""
        height, width, inputs = image_shape
        cost = operations.convolution(height, width, 3, inputs, self.width).of_data
        for stage, gate in enumerate(self.gates):
            channels = self.channels(stage)
            if stage:
                cost += operations.convolution(height, width, 2, channels // 2, channels, stride=2)
                height, width = -(-height // 2), -(-width // 2)
            block = operations.convolution(height, width, 3, channels, channels) * 2
            block += Cost(pointwise=2 * height * width * channels)  # ReLU
            block += gate.cost(height, width, channels) if gate else Cost()
            cost += block * self.depth
        return cost


class CNN(nn.Module):
    """A model from images to class logits, in float32. Its `length` counts the positions of the first stage's map."""

    config: CNNConfig
    classes: int
    length: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"], train: bool = False) -> Float[Array, "B classes"]:
        x = feature_map(self.config, images, self.dtype).mean((1, 2))
        x = Dropout(self.config.dropout, name="dropout_head")(x, train=train)
        return Dense((self.classes,), dtype=self.dtype, name="head")(x).astype(jnp.float32)


def feature_map(config: CNNConfig, images: Float[Array, "B H W C"], dtype: DTypeLike) -> Float[Array, "B h w c"]:
    """Computes the map of the last stage; its layers are submodules of the module that calls it."""
    x = convolution(config.width, 3, dtype, "conv_stem")(images)
    for stage, gate in enumerate(config.gates):
        if stage:
            x = convolution(config.channels(stage), 2, dtype, f"conv_down_{stage}", stride=2)(x)
        for block in range(config.depth):
            name = f"block_{stage * config.depth + block}"
            x = Residual(config, gate, dtype, name=name)(x)
    return nn.relu(config.norm_layer(dtype, "norm")(x))


class Residual(nn.Module):
    """A residual block, which keeps the map's shape; its gate is the attention on the residual branch, or None."""

    config: CNNConfig
    gate: Gate | None
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        y = x
        for layer in range(2):
            y = nn.relu(self.config.norm_layer(self.dtype, f"norm_{layer}")(y))
            y = convolution(x.shape[-1], 3, self.dtype, f"conv_{layer}")(y)
        if self.gate:
            y = Gated(self.gate, name="attention")(y)
        return constrain(x + y)


class Gated(nn.Module):
    """Channel or spatial attention with its parameters."""

    gate: Gate

    @nn.compact
    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B H W C"]:
        declared = self.gate.parameters(x.shape[-1])
        return self.gate({name: self.param(name, p.init, p.shape, jnp.float32) for name, p in declared.items()}, x)


def convolution(channels: int, side: int, dtype: DTypeLike, name: str, stride: int = 1) -> nn.Module:
    """Makes a convolution with zero padding and without a bias, because a norm follows it."""
    return nn.Conv(channels, (side, side), stride, use_bias=False, dtype=dtype, name=name)
