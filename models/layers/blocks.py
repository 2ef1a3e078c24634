"""Blocks of Transformers: attention and an MLP, each with a residual and a LayerNorm."""

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
    """Splits the batch axis over the data and fsdp axes of the mesh in force; no mesh, no change."""
    axes = free_axes(*BATCH)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


class Mlp(nn.Module):
    """Two dense layers with an activation between, dropout after each.

    Attributes:
      hidden: Hidden units.
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
        """An array like `x`."""
        hidden = ACTIVATIONS[self.activation](Dense((self.hidden,), dtype=self.dtype, name="up")(x))
        hidden = Dropout(self.hidden_dropout, name="dropout_hidden")(hidden, train=train)
        out = Dense((x.shape[-1],), dtype=self.dtype, name="down")(hidden)
        return Dropout(self.dropout, name="dropout_out")(out, train=train)


class Block(nn.Module):
    """Attention, perhaps cross-attention, and an MLP, each with a residual and a LayerNorm before or after it.

    Attributes:
      attention: The attention layer, unbound.
      mlp: The MLP, unbound.
      norm: `pre` or `post`.
      epsilon: LayerNorm's ε.
      dropout: Rate on the attention layers' outputs.
      dtype: Compute dtype.
      cross: The cross-attention layer, unbound, of a block that has one.
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
        """An array like `x`, and with a cache the one for the next call.

        Args:
          x: The tokens.
          mask: Who of them may attend to whom.
          train: Whether there is dropout.
          cache: Of the tokens before them.
          source: What a cross-attention attends to, as it is or prepared.
          source_mask: Who may attend to what of it.
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
        """The source as the cross-attention's calls take it, see `MultiHeadAttention.prepare`."""
        return self.cross.prepare(source, width, lengths)
