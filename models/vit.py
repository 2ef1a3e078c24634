"""The Vision Transformer (Dosovitskiy et al. 2021) with any attention mechanism in each layer."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attention.activations import ACTIVATIONS
from attention.errors import UsageError
from attention.kernels.call import IMPLEMENTATIONS
from models import mechanisms
from models.layers import (
    NORMS,
    POSITIONS,
    Block,
    Dropout,
    Linear,
    Mlp,
    MultiHeadAttention,
    Positions,
    check_choice,
)

POOLS = ("class_token", "mean")
REMAT = {
    "none": None,
    "block": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """What a Vision Transformer is.

    Attributes:
      name: `vit`.
      attention: Mechanism spec string, see `models.mechanisms`.
      implementation: How attention is computed: `auto`, `xla`, `chunked`, `cudnn`, `pallas` or `reference`.
      depth: Number of blocks.
      width: D, a multiple of `heads`.
      heads: N.
      mlp: Hidden units of each block's MLP.
      patch: Side of a square patch, in pixels.
      pool: What the classifier reads: the `class_token` or the `mean` over tokens.
      norm: LayerNorm before (`pre`) or after (`post`) each residual.
      norm_epsilon: LayerNorm's ε.
      positions: `learned`, `sinusoidal` or `none`.
      activation: The MLP's: `gelu` (exact), `gelu_tanh`, `relu` or `swish`.
      embedding_dropout: Rate on the embeddings.
      dropout: Rate on the attention layers' outputs and both layers of each MLP.
      attention_dropout: Rate on the attention weights.
      attention_bias: Whether linear projections of queries, keys, values and outputs have biases.
      remat: What the backward pass computes again: `none`, every `block`, or all but matrix products (`dots`).
    """

    name: str
    attention: str
    implementation: str
    depth: int
    width: int
    heads: int
    mlp: int
    patch: int
    pool: str
    norm: str
    norm_epsilon: float
    positions: str
    activation: str
    embedding_dropout: float
    dropout: float
    attention_dropout: float
    attention_bias: bool
    remat: str

    def __post_init__(self):
        for field in ("depth", "width", "heads", "mlp", "patch"):
            if getattr(self, field) < 1:
                raise UsageError(f"model.{field} must be at least 1, but it is {getattr(self, field)}.")
        for field in ("embedding_dropout", "dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, field) < 1.0:
                raise UsageError(f"model.{field} must be at least 0 and below 1, but it is {getattr(self, field)}.")
        if self.norm_epsilon <= 0:
            raise UsageError(f"model.norm_epsilon must be above 0, but it is {self.norm_epsilon}.")
        if self.width % self.heads:
            raise UsageError(
                f"model.heads={self.heads} does not divide model.width={self.width}; choose a divisor of {self.width}."
            )
        check_choice("model.implementation", self.implementation, IMPLEMENTATIONS)
        check_choice("model.pool", self.pool, POOLS)
        check_choice("model.norm", self.norm, NORMS)
        check_choice("model.positions", self.positions, POSITIONS)
        check_choice("model.activation", self.activation, ACTIVATIONS)
        check_choice("model.remat", self.remat, REMAT)
        mechanisms.resolve(self.attention, self.depth)

    def tokens(self, image_shape: tuple[int, ...]) -> int:
        """ℓ for images of shape `(H, W, C)`: patches, and the class token where there is one.

        Raises:
          UsageError: the patch does not divide the image.
        """
        height, width, _ = image_shape
        if height % self.patch or width % self.patch:
            raise UsageError(
                f"model.patch={self.patch} does not divide images of {height}x{width} pixels; "
                "choose another patch, or resize the images with data.train_transforms and data.eval_transforms."
            )
        return (height // self.patch) * (width // self.patch) + (self.pool == "class_token")


class ViT(nn.Module):
    """Images to class logits.

    Attributes:
      config: What it is.
      classes: Number of logits.
      length: ℓ, from `ViTConfig.tokens`.
      dtype: Compute dtype; parameters are float32.
    """

    config: ViTConfig
    classes: int
    length: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"], train: bool = False) -> Float[Array, "B classes"]:
        """Logits in float32.

        Raises:
          UsageError: the patch does not divide the images, or they have more tokens than ℓ.
        """
        config = self.config
        config.tokens(images.shape[1:])
        x = Linear((config.width,), dtype=self.dtype, name="embed")(patches(images, config.patch))
        if config.pool == "class_token":
            token = self.param("class_token", nn.initializers.zeros_init(), (1, 1, config.width))
            x = jnp.concatenate([jnp.broadcast_to(token.astype(x.dtype), (len(x), 1, config.width)), x], axis=1)
        x = Positions(config.positions, self.length, name="positions")(x)
        x = Dropout(config.embedding_dropout, name="dropout_embedding")(x, train=train)
        block = Block if config.remat == "none" else nn.remat(Block, policy=REMAT[config.remat], static_argnums=(3,))
        for layer, mechanism in enumerate(mechanisms.resolve(config.attention, config.depth)):
            x = self._block(block, layer, mechanism)(x, None, train)
        x = nn.LayerNorm(config.norm_epsilon, dtype=self.dtype, name="norm")(x)
        pooled = x[:, 0] if config.pool == "class_token" else x.mean(axis=1)
        return Linear((self.classes,), dtype=self.dtype, name="head")(pooled).astype(jnp.float32)

    def _block(self, block: type[Block], layer: int, mechanism: mechanisms.Mechanism) -> Block:
        config = self.config
        return block(
            attention=MultiHeadAttention(
                mechanism,
                config.heads,
                self.length,
                config.implementation,
                config.attention_dropout,
                config.attention_bias,
                config.norm_epsilon,
                self.dtype,
                parent=None,
            ),
            mlp=Mlp(config.mlp, config.activation, config.dropout, self.dtype, parent=None),
            norm=config.norm,
            epsilon=config.norm_epsilon,
            dropout=config.dropout,
            dtype=self.dtype,
            name=f"block_{layer}",
        )


def patches(images: Float[Array, "B H W C"], side: int) -> Float[Array, "B L P"]:
    """Square patches in row-major order, each flattened as (row, column, channel)."""
    batch, height, width, channels = images.shape
    grid = images.reshape(batch, height // side, side, width // side, side, channels)
    return grid.transpose(0, 1, 3, 2, 4, 5).reshape(batch, -1, side * side * channels)
