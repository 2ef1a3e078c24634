"""The Vision Transformer (Dosovitskiy et al. 2021) with any attention mechanism in each layer."""

import dataclasses
import math
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attention import operations
from attention.errors import UsageError
from attention.operations import Cost
from attention.types import Count, Names, Unit
from models.fields import field
from models.layers import stack
from models.layers.dropout import Dropout
from models.layers.positions import Positions
from models.layers.projections import Dense
from models.transformer import PRETRAINED, TransformerConfig

POOLS = ("class_token", "mean")


@dataclasses.dataclass(frozen=True)
class ViTConfig(TransformerConfig):
    """The config of a Vision Transformer."""

    name: str = "vit"
    patch: Annotated[Count, Unit("pixels")] = field(2, "Side of the square patches.")
    pool: Annotated[str, Names(POOLS)] = field(
        "mean", "What the classifier reads: a `class_token`, or the `mean` over tokens."
    )
    pretrained: str = field("", PRETRAINED)

    def tokens(self, image_shape: tuple[int, ...]) -> int:
        """Counts the tokens ℓ of images of shape `(H, W, C)`: the patches, and a class token if there is one."""
        return math.prod(grid(image_shape, self.patch)) + (self.pool == "class_token")

    def build(self, image_shape: tuple[int, int, int], classes: int, dtype: DTypeLike = jnp.float32) -> "ViT":
        return ViT(self, classes, self.tokens(image_shape), dtype)

    def cost(self, image_shape: tuple[int, int, int], classes: int) -> Cost:
        length, pixels = self.tokens(image_shape), self.patch**2 * image_shape[-1]
        patches = length - (self.pool == "class_token")
        embed = operations.linear(patches, pixels, self.width).of_data
        return embed + self.cost_of_blocks(length) + operations.linear(1, self.width, classes)


class ViT(nn.Module):
    """A model from images to class logits, in float32. Its `length` is ℓ, from `ViTConfig.tokens`."""

    config: ViTConfig
    classes: int
    length: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"], train: bool = False) -> Float[Array, "B classes"]:
        """Classifies images; raises UsageError if the patch does not divide them, or they have more than ℓ tokens."""
        config = self.config
        x = Dense((config.width,), dtype=self.dtype, name="embed")(patches(images, config.patch))
        if config.pool == "class_token":
            token = self.param("class_token", nn.initializers.zeros_init(), (1, 1, config.width))
            x = jnp.concatenate([jnp.broadcast_to(token.astype(x.dtype), (len(x), 1, config.width)), x], axis=1)
        x = Positions(config.positions, self.length, name="positions")(x)
        x = Dropout(config.embedding_dropout, name="dropout_embedding")(x, train=train)
        x, _ = stack.run(config.blocks(self.length, self.dtype), x, None, train, scan=config.scan)
        x = config.norm_layer(self.dtype, "norm")(x)
        pooled = x[:, 0] if config.pool == "class_token" else x.mean(axis=1)
        return Dense((self.classes,), dtype=self.dtype, name="head")(pooled).astype(jnp.float32)


def grid(image_shape: tuple[int, ...], side: int, what: str = "model.patch") -> tuple[int, int]:
    """Counts the rows and columns of square patches of images of shape `(H, W, C)`.

    Raises:
      UsageError: the patch, which the message calls `what`, does not divide the image.
    """
    height, width, _ = image_shape
    if height % side or width % side:
        raise UsageError(
            f"{what}={side} does not divide images of {height}x{width} pixels; "
            "choose another patch or data.image_shape, or resize with data.train_transforms and data.eval_transforms."
        )
    return height // side, width // side


def patches(images: Float[Array, "B H W C"], side: int) -> Float[Array, "B L P"]:
    """Cuts images into square patches in row-major order, flattened as (row, column, channel); see `grid`."""
    (rows, columns), channels = grid(images.shape[1:], side), images.shape[-1]
    cells = images.reshape(-1, rows, side, columns, side, channels)
    return cells.transpose(0, 1, 3, 2, 4, 5).reshape(-1, rows * columns, side * side * channels)
