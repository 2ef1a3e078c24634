"""Blocks of Transformers: attention and an MLP, with a residual and a LayerNorm for each of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

import attention
from attention.activations import ACTIVATIONS
from attention.mesh import BATCH, free_axes
from models.layers.cache import Cache, PreparedSource
from models.layers.dropout import Dropout
from models.layers.multi_head import MultiHeadAttention
from models.layers.projections import Dense

NORMS = ("pre", "post")


def constrain(x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
    """Splits the batch axis over the data and fsdp axes of the mesh in force; without a mesh it returns `x`."""
    axes = free_axes(*BATCH)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


class Mlp(nn.Module):
    """Two dense layers with an activation between them and dropout after each layer.

    Attributes:
      hidden: Number of hidden units.
      activation: A name of `ACTIVATIONS`.
      hidden_dropout: Rate after the activation.
      dropout: Rate after the second layer.
      dtype: Compute dtype.
    """

    hidden: int
    activation: str = "gelu"
    hidden_dropout: float = 0.0
    dropout: float = 0.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], *, train: bool) -> Float[Array, "B L D"]:
        """Returns an array like `x`."""
        hidden = ACTIVATIONS[self.activation](Dense((self.hidden,), dtype=self.dtype, name="up")(x))
        hidden = Dropout(self.hidden_dropout, name="dropout_hidden")(hidden, train=train)
        out = Dense((x.shape[-1],), dtype=self.dtype, name="down")(hidden)
        return Dropout(self.dropout, name="dropout_out")(out, train=train)


class Block(nn.Module):
    """Attention, optional cross-attention and an MLP, with a residual and a pre- or post-LayerNorm for each of them.

    Attributes:
      attention: The attention layer, unbound.
      mlp: The MLP, unbound.
      norm: `pre` or `post`.
      epsilon: LayerNorm's ε.
      dropout: Rate on the attention layers' outputs.
      dtype: Compute dtype.
      cross: The cross-attention layer, unbound, or None.
    """

    attention: MultiHeadAttention
    mlp: Mlp
    norm: str
    epsilon: float
    dropout: float
    dtype: DTypeLike = jnp.float32
    cross: MultiHeadAttention | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B L D"],
        mask: attention.Mask | None,
        train: bool,
        cache: Cache | None = None,
        source: Float[Array, "B S E"] | PreparedSource | None = None,
        source_mask: attention.Mask | None = None,
    ) -> Float[Array, "B L D"] | tuple[Float[Array, "B L D"], Cache]:
        """Returns an array like `x`, and with a cache also the cache for the next call.

        Args:
          x: Hidden states of the tokens.
          mask: Which token may attend to which.
          train: Whether there is dropout.
          cache: The cache of the preceding tokens.
          source: The source of a cross-attention, as hidden states or prepared.
          source_mask: Which token may attend to which source token.
        """
        kept, x = [], constrain(x)

        def attend(x):
            out = self.attention(x, mask=mask, train=train, cache=cache)
            out, *kept[:] = (out,) if cache is None else out
            return Dropout(self.dropout, name="dropout_attention")(out, train=train)

        def cross(x):
            out = self.cross(x, source, mask=source_mask, train=train)
            return Dropout(self.dropout, name="dropout_cross")(out, train=train)

        layers = {"attention": attend, "cross": cross, "mlp": lambda x: self.mlp(x, train=train)}
        for name, layer in layers.items():
            if name == "cross" and self.cross is None:
                continue
            norm = nn.LayerNorm(self.epsilon, dtype=self.dtype, name=f"norm_{name}")
            x = x + layer(norm(x)) if self.norm == "pre" else norm(x + layer(x))
        x = constrain(x)
        return (x, *kept) if kept else x

    def prepare(self, source: Float[Array, "B S E"], width: int, lengths: Int[Array, "B"]) -> PreparedSource:
        """Prepares the source for the cross-attention, see `MultiHeadAttention.prepare`."""
        return self.cross.prepare(source, width, lengths)
