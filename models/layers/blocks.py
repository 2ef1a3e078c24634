"""Blocks of Transformers: attention and an MLP, each with a residual and a norm."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

import attention
from attention.activations import ACTIVATIONS
from attention.mesh import BATCH, CONTEXT, devices, free_axes
from models.layers.cache import Cache, PreparedSource
from models.layers.dropout import Dropout
from models.layers.multi_head import MultiHeadAttention
from models.layers.norms import NORM_TYPES
from models.layers.projections import Dense

NORMS = ("pre", "post", "sandwich")


def constrain(x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
    """Splits the batch axis over the data and fsdp axes of the mesh in force, and the tokens over its context axis."""
    axes, tokens = free_axes(*BATCH), free_axes(*CONTEXT)
    if tokens and x.shape[1] % devices(*CONTEXT) == 0:
        return jax.lax.with_sharding_constraint(x, PartitionSpec(axes, tokens))
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


class Mlp(nn.Module):
    """Two dense layers with an activation between them and dropout after each layer.

    Attributes:
      hidden: Number of hidden units.
      activation: A name of `ACTIVATIONS`.
      gated: Whether the activation is that of a third layer, which multiplies the first (Shazeer 2020).
      bias: Whether the layers have biases.
      hidden_dropout: Rate after the activation.
      dropout: Rate after the second layer.
      dtype: Compute dtype.
    """

    hidden: int
    activation: str = "gelu"
    hidden_dropout: float = 0.0
    dropout: float = 0.0
    dtype: DTypeLike = jnp.float32
    gated: bool = False
    bias: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], *, train: bool) -> Float[Array, "B L D"]:
        dense = functools.partial(Dense, bias=self.bias, dtype=self.dtype)
        up = dense((self.hidden,), name="up")(x)
        hidden = ACTIVATIONS[self.activation](dense((self.hidden,), name="gate")(x) if self.gated else up)
        hidden = hidden * up if self.gated else hidden
        hidden = Dropout(self.hidden_dropout, name="dropout_hidden")(hidden, train=train)
        out = dense((x.shape[-1],), name="down")(hidden)
        return Dropout(self.dropout, name="dropout_out")(out, train=train)


class Block(nn.Module):
    """Attention, optional cross-attention and an MLP, each with a residual and one or two norms.

    Attributes:
      attention: The attention layer, unbound.
      mlp: The MLP, unbound, or None.
      norm: What is normed: a layer's inputs (`pre`), the sum of its inputs and outputs (`post`), or both its inputs and
        its outputs, before the sum (`sandwich`, as in Gemma 2).
      epsilon: The norms' ε.
      dropout: Rate on the attention layers' outputs.
      dtype: Compute dtype.
      cross: The cross-attention layer, unbound, or None.
      norm_type: A name of `NORM_TYPES`.
      bare: Whether attention takes the block's inputs without a norm.
    """

    attention: MultiHeadAttention
    mlp: Mlp | None
    norm: str
    epsilon: float
    dropout: float
    dtype: DTypeLike = jnp.float32
    cross: MultiHeadAttention | None = None
    norm_type: str = "layer"
    bare: bool = False

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
        """Applies the layers; with a cache it also returns the cache for the next call.

        Args:
          x: Hidden states of the tokens.
          mask: Which token may attend to which.
          train: Whether there is dropout.
          cache: The cache of the preceding tokens.
          source: The source of a cross-attention, as hidden states or prepared.
          source_mask: Which token may attend to which source token.
        """
        x = constrain(x)
        out = self.attention(self._inputs("attention", x), mask=mask, train=train, cache=cache)
        out, cache = (out, None) if cache is None else out
        x = self._sum("attention", x, Dropout(self.dropout, name="dropout_attention")(out, train=train))
        if self.cross is not None:
            out = self.cross(self._inputs("cross", x), source, mask=source_mask, train=train)
            x = self._sum("cross", x, Dropout(self.dropout, name="dropout_cross")(out, train=train))
        if self.mlp is not None:
            x = self._sum("mlp", x, self.mlp(self._inputs("mlp", x), train=train))
        x = constrain(x)
        return x if cache is None else (x, cache)

    def _inputs(self, name: str, x: jax.Array) -> jax.Array:
        """Norms the inputs of a layer where the block does."""
        bare = self.norm == "post" or (self.bare and name == "attention")
        return x if bare else self._norm(name)(x)

    def _sum(self, name: str, x: jax.Array, out: jax.Array) -> jax.Array:
        """Adds a layer's outputs to its inputs, and norms the sum or the outputs where the block does."""
        if self.norm == "post":
            return self._norm(name)(x + out)
        return x + (self._norm(f"{name}_out")(out) if self.norm == "sandwich" else out)

    def _norm(self, name: str) -> nn.Module:
        return NORM_TYPES[self.norm_type](self.epsilon, dtype=self.dtype, name=f"norm_{name}")

    def numbered(self, layer: Int[Array, ""]) -> "Block":
        """Copies the block for another number among the model's blocks."""
        at = {name: getattr(self, name) for name in ("attention", "cross") if getattr(self, name) is not None}
        return self.clone(**{name: attend.clone(layer=layer) for name, attend in at.items()})

    def prepare(self, source: Float[Array, "B S E"], width: int, lengths: Int[Array, "B"] | None) -> PreparedSource:
        """Prepares the source for the cross-attention, see `MultiHeadAttention.prepare`."""
        return self.cross.prepare(source, width, lengths)
