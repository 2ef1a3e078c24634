"""Dense layers to heads and from them, the MLPs that can replace these, and embeddings."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention.mesh import as_rows
from models.layers.output import Output


class Dense(nn.Module):
    """A dense layer whose outputs or inputs may span several axes, such as heads and head width.

    It multiplies matrices with two axes: with three, XLA on a CPU transposes a copy of the inputs in the backward pass.

    Attributes:
      outputs: Sizes of the output axes.
      inputs: Number of input axes, the last ones.
      bias: Whether there is a bias.
      gain: Factor of the initial kernel.
      dtype: Compute dtype; the parameters are float32.
    """

    outputs: tuple[int, ...]
    inputs: int = 1
    bias: bool = True
    gain: float = 1.0
    dtype: DTypeLike = jnp.float32

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Projects the last `inputs` axes to `outputs`."""
        lead, last = x.shape[: -self.inputs], x.shape[-self.inputs :]
        kernel, bias = self.parameters(last)
        matrix = kernel.astype(self.dtype).reshape(math.prod(last), -1)
        rows = as_rows(x.astype(self.dtype).reshape(*lead, len(matrix))) @ matrix
        if bias is not None:
            rows = rows + bias.astype(self.dtype).reshape((1,) * (rows.ndim - 1) + (-1,))
        return rows.reshape(*lead, *self.outputs)

    def output(self, x: Float[Array, "B T D"]) -> Output:
        """Prepares the projection for an `Output`, which computes it later."""
        kernel, bias = self.parameters(x.shape[-1:])
        return Output(x.astype(self.dtype), kernel, None if bias is None else bias.astype(self.dtype))

    @nn.compact
    def parameters(self, last: tuple[int, ...]) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
        """Declares kernel and bias for inputs whose last axes have these sizes."""
        shape = (*last, *self.outputs)
        axes = range(self.inputs), range(self.inputs, len(shape))
        kernel_init = nn.initializers.variance_scaling(self.gain**2, "fan_in", "truncated_normal", *axes)
        kernel = self.param("kernel", kernel_init, shape)
        return kernel, self.param("bias", nn.initializers.zeros_init(), self.outputs) if self.bias else None


class MlpProjection(nn.Module):
    """W2 σ(LayerNorm(W1 x + b1)) + b2 with 2D hidden units (Zhang §3.2) in place of a linear projection.

    Attributes:
      outputs: Sizes of the output axes.
      inputs: Number of input axes, the last ones.
      norm: Whether there is a LayerNorm.
      relu: Whether σ is ReLU; else it is the identity, as in the paper's ablation DLP.
      epsilon: LayerNorm's ε.
      gain: Factor of the initial W2.
      dtype: Compute dtype.
    """

    outputs: tuple[int, ...]
    inputs: int = 1
    norm: bool = True
    relu: bool = True
    epsilon: float = 1e-6
    gain: float = 1.0
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """Projects the last `inputs` axes to `outputs`."""
        units = 2 * math.prod(x.shape[-self.inputs :])
        hidden = Dense((units,), self.inputs, dtype=self.dtype, name="up")(x)
        if self.norm:
            hidden = nn.LayerNorm(self.epsilon, dtype=self.dtype, name="norm")(hidden)
        if self.relu:
            hidden = nn.relu(hidden)
        return Dense(self.outputs, gain=self.gain, dtype=self.dtype, name="down")(hidden)


MLPS = {"mlp": {}, "mlp_without_norm": {"norm": False}, "mlp_without_relu": {"relu": False}}


def look_up(embed: nn.Embed, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
    """Looks up the embeddings of tokens. On a mesh it first gathers a table that is split by its width.

    XLA would otherwise look up the whole batch on every device and then split the batch again.
    """
    table = embed.embedding.astype(embed.dtype)
    if jax.sharding.get_abstract_mesh().axis_names:
        table = jax.lax.with_sharding_constraint(table, PartitionSpec(PartitionSpec.UNCONSTRAINED, None))
    return jnp.take(table, tokens, axis=0)
