"""The layers that every model is made of. They own parameters; the attention maths is in `attention/`."""

import math
from collections.abc import Callable
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float

import attention
from attention.dropout import dropout, seed_of
from attention.errors import UsageError, unknown
from models.mechanisms import Mechanism


def gelu(x: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """x Φ(x), exact (Hendrycks & Gimpel 2016); through erf, which is faster on a CPU than `nn.gelu`'s erfc."""
    return x * (0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5))))


ACTIVATIONS: dict[str, Callable] = {
    "gelu": gelu,
    "gelu_tanh": partial(nn.gelu, approximate=True),
    "relu": nn.relu,
    "swish": nn.swish,
}
NORMS = ("pre", "post")
POSITIONS = ("learned", "sinusoidal", "none")


def constrain(x: Float[Array, "B ..."]) -> Float[Array, "B ..."]:
    """Splits the batch axis over the data and fsdp axes of the mesh in force; no mesh, no change."""
    axes = tuple(axis for axis in ("data", "fsdp") if axis in jax.sharding.get_abstract_mesh().axis_names)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(axes)) if axes else x


class Dropout(nn.Module):
    """Dropout whose mask is recomputed, never stored; active when `train`.

    Attributes:
      rate: Probability of a zero.
    """

    rate: float

    @nn.compact
    def __call__(self, x: Float[Array, "*S"], *, train: bool) -> Float[Array, "*S"]:
        """An array like `x`."""
        return dropout(x, self.rate, seed_of(self.make_rng("dropout"))) if train and self.rate else x


class Linear(nn.Module):
    """A dense layer whose outputs, or inputs, may be several axes: heads times head width.

    It multiplies matrices of two axes: given three, XLA on a CPU copies the inputs transposed for the backward pass.

    Attributes:
      outputs: Sizes of the output axes.
      inputs: How many of the last axes are inputs.
      dtype: Compute dtype; the parameters are float32.
    """

    outputs: tuple[int, ...]
    inputs: int = 1
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """`x` with its last `inputs` axes replaced by `outputs`."""
        lead, last = x.shape[: -self.inputs], x.shape[-self.inputs :]
        shape = (*last, *self.outputs)
        kernel_init = nn.initializers.lecun_normal(range(self.inputs), range(self.inputs, len(shape)))
        kernel = self.param("kernel", kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros_init(), self.outputs)
        matrix = kernel.astype(self.dtype).reshape(math.prod(last), -1)
        rows = x.astype(self.dtype).reshape(-1, len(matrix)) @ matrix
        return (rows + bias.astype(self.dtype).reshape(1, -1)).reshape(*lead, *self.outputs)


class MultiHeadAttention(nn.Module):
    """Multi-head attention of any mechanism, self- or cross-.

    Attributes:
      mechanism: Which attention it is.
      heads: N.
      length: ℓ, the most tokens a mechanism of fixed length is built for.
      implementation: How the scores are computed, see `attention.dot_product_attention`.
      dropout: Rate on the attention weights.
      dtype: Compute dtype.
    """

    mechanism: Mechanism
    heads: int
    length: int
    implementation: str = "auto"
    dropout: float = 0.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        source: Float[Array, "B S D"] | None = None,
        *,
        mask: attention.Mask | None = None,
        train: bool = False,
    ) -> Float[Array, "B T D"]:
        """Attends from `x` to `source`, or to itself.

        Raises:
          UsageError: the width is no multiple of the heads, or a fixed length is exceeded.
        """
        source = x if source is None else source
        query = self._project("query", x)
        key = self._project("key", source)
        value = self._project("value", source)
        if self.mechanism.align is not None:
            value = self._align(value, mask)
        heads = attention.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            scale=self.mechanism.score.scale or None,
            dropout_rate=self.dropout if train else 0.0,
            dropout_key=self.make_rng("dropout") if train and self.dropout else None,
            implementation=self.implementation,
        )
        if self.mechanism.out == "identity":
            return heads.reshape(x.shape)
        return Linear((x.shape[-1],), inputs=2, dtype=self.dtype, name="out")(heads)

    def _project(self, piece: str, x: Float[Array, "B L D"]) -> Float[Array, "B L N H"]:
        width = x.shape[-1]
        if width % self.heads:
            raise UsageError(f"{self.heads} heads do not divide a width of {width}; choose a divisor of {width}.")
        split = (self.heads, width // self.heads)
        if getattr(self.mechanism, piece) == "identity":
            return x.reshape(*x.shape[:-1], *split)
        return Linear(split, dtype=self.dtype, name=piece)(x)

    def _align(self, value: Float[Array, "B S N H"], mask: attention.Mask | None) -> Float[Array, "B S N H"]:
        per_head = (self.heads,) if self.mechanism.align.per_head else ()
        kernel_init = nn.initializers.glorot_uniform(batch_axis=(0,) if per_head else ())
        kernel = self.param("align_kernel", kernel_init, (*per_head, self.length, self.length))
        bias = self.param("align_bias", nn.initializers.zeros_init(), (*per_head, self.length))
        return attention.align_values(value, kernel, bias, mask=mask)


class Mlp(nn.Module):
    """Two dense layers with an activation between, dropout after each.

    Attributes:
      hidden: Hidden units.
      activation: A name of `ACTIVATIONS`.
      dropout: Rate after the activation and after the second layer.
      dtype: Compute dtype.
    """

    hidden: int
    activation: str = "gelu"
    dropout: float = 0.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], *, train: bool) -> Float[Array, "B L D"]:
        """An array like `x`."""
        hidden = ACTIVATIONS[self.activation](Linear((self.hidden,), dtype=self.dtype, name="up")(x))
        hidden = Dropout(self.dropout, name="dropout_hidden")(hidden, train=train)
        out = Linear((x.shape[-1],), dtype=self.dtype, name="down")(hidden)
        return Dropout(self.dropout, name="dropout_out")(out, train=train)


class Block(nn.Module):
    """Attention and an MLP, each with a residual and a LayerNorm before (`pre`) or after it (`post`).

    Attributes:
      attention: The attention layer, unbound.
      mlp: The MLP, unbound.
      norm: `pre` or `post`.
      epsilon: LayerNorm's ε.
      dropout: Rate on the attention layer's output.
      dtype: Compute dtype.
    """

    attention: MultiHeadAttention
    mlp: Mlp
    norm: str
    epsilon: float
    dropout: float
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"], mask: attention.Mask | None, train: bool) -> Float[Array, "B L D"]:
        """An array like `x`."""

        def attend(x):
            return Dropout(self.dropout, name="dropout_attention")(
                self.attention(x, mask=mask, train=train), train=train
            )

        norm_attention = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm_attention")
        norm_mlp = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm_mlp")
        if self.norm == "pre":
            x = x + attend(norm_attention(x))
            return constrain(x + self.mlp(norm_mlp(x), train=train))
        x = norm_attention(x + attend(x))
        return constrain(norm_mlp(x + self.mlp(x, train=train)))


def sinusoids(length: int, width: int) -> Float[Array, "L D"]:
    """sin and cos of position / 10000^(2i/D) in turn (Vaswani et al. 2017, §3.5)."""
    rates = jnp.exp(-math.log(10_000.0) * jnp.arange(0, width, 2) / width)
    angles = jnp.arange(length)[:, None] * rates[None, :]
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(length, -1)[:, :width]


class Positions(nn.Module):
    """Adds a position encoding.

    Attributes:
      kind: A name of `POSITIONS`.
      length: The most tokens there may be, for the learned table.
    """

    kind: str
    length: int

    @nn.compact
    def __call__(self, x: Float[Array, "B L D"]) -> Float[Array, "B L D"]:
        """An array like `x`.

        Raises:
          UsageError: more tokens than the learned table has.
        """
        tokens, width = x.shape[-2:]
        if self.kind == "none":
            return x
        if self.kind == "sinusoidal":
            return x + sinusoids(tokens, width)[None].astype(x.dtype)
        if tokens > self.length:
            raise UsageError(f"Positions were learned for {self.length} tokens, but this sequence has {tokens}.")
        table = self.param("table", nn.initializers.normal(0.02), (1, self.length, width))
        return x + table[:, :tokens].astype(x.dtype)


def check_choice(field: str, value: str, valid) -> None:
    """Raises UsageError unless `value` is among `valid`."""
    if value not in valid:
        raise unknown(field, value, valid)
