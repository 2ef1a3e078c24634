"""Attention that compares no queries with keys: channel and spatial attention of feature maps, and the alignment.

Channel and spatial attention (Wikipedia describes both) multiply every channel, or every position, by a weight between
0 and 1. Feature maps have the shape `(*B, H, W, C)`: height, width, channels. Super Attention's alignment is a
learnable mixing of the values over tokens (Hosseini, eq. 22).
"""

import dataclasses
from typing import Annotated

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention import operations
from attention.errors import UsageError
from attention.kernels.arrays import precise
from attention.kernels.call import check_rows, check_weight
from attention.mask import BY_POSITION, Mask
from attention.parameters import Parameter, Params, lift
from attention.types import Checked, Count, Rule


def squeeze_excitation(
    x: Float[Array, "*B H W C"], down: Float[Array, "C R"], up: Float[Array, "R C"]
) -> Float[Array, "*B H W C"]:
    """Computes x · σ(W2 ReLU(W1 z)), where z is the mean of each channel over the map (Hu et al. 2018, eq. 2 to 4).

    Args:
      x: Feature maps.
      down: W1, without a bias as in the paper.
      up: W2, without a bias.

    Raises:
      UsageError: the weights do not fit the channels or each other.
    """
    _check_mlp(x, down, up)
    return _times(x, jax.nn.sigmoid(_mlp(precise(x).mean((-3, -2)), down, up))[..., None, None, :])


def channel_attention(
    x: Float[Array, "*B H W C"], down: Float[Array, "C R"], up: Float[Array, "R C"]
) -> Float[Array, "*B H W C"]:
    """Computes x · σ(MLP(mean) + MLP(max)) with each channel's mean and maximum over the map (Woo et al. 2018, eq. 2).

    Args:
      x: Feature maps.
      down: W0 of the MLP, which both share, without a bias.
      up: W1 of the MLP, after a ReLU.

    Raises:
      UsageError: the weights do not fit the channels or each other.
    """
    _check_mlp(x, down, up)
    pooled = precise(x).mean((-3, -2)), precise(x).max((-3, -2))
    return _times(x, jax.nn.sigmoid(sum(_mlp(statistic, down, up) for statistic in pooled))[..., None, None, :])


def spatial_attention(x: Float[Array, "*B H W C"], kernel: Float[Array, "K K 2 1"]) -> Float[Array, "*B H W C"]:
    """Computes x · σ(f([mean; max])), f a convolution of the mean and maximum over channels (Woo et al. 2018, eq. 3).

    Args:
      x: Feature maps.
      kernel: The kernel of f, with an odd side K: 7 x 7 in the paper. The map is padded with zeros.

    Raises:
      UsageError: the kernel has another shape, or K is even.
    """
    side = len(kernel)
    check_weight("kernel", kernel, (side, side, 2, 1))
    if side % 2 == 0:
        raise UsageError(f"The kernel of spatial attention must have an odd side, not {side}.")
    *batch, height, width, _ = x.shape
    pooled = jnp.stack([precise(x).mean(-1), precise(x).max(-1)], axis=-1).reshape(-1, height, width, 2)
    layout = ("NHWC", "HWIO", "NHWC")
    where = jax.lax.conv_general_dilated(pooled, kernel.astype(pooled.dtype), (1, 1), "SAME", dimension_numbers=layout)
    return _times(x, jax.nn.sigmoid(where).reshape(*batch, height, width, 1))


def cbam(
    x: Float[Array, "*B H W C"], down: Float[Array, "C R"], up: Float[Array, "R C"], kernel: Float[Array, "K K 2 1"]
) -> Float[Array, "*B H W C"]:
    """Applies channel attention, then spatial attention (Woo et al. 2018, eq. 1)."""
    return spatial_attention(channel_attention(x, down, up), kernel)


def align_values(
    value: Float[Array, "*B S N H"],
    kernel: Float[Array, "*N L L"],
    bias: Float[Array, "*N L"] | None = None,
    *,
    mask: Mask | None = None,
    rows: int | None = None,
) -> Float[Array, "*B R N H"]:
    """Computes V'_i = Σ_j W^A_ij V_j + b_i for every head, with one W^A for all heads or one for each head.

    A sequence shorter than L uses the leading block of W^A. A causal mask makes W^A lower-triangular. Values beyond
    `key_lengths` are zeroed first, because W^A would otherwise carry them to the real tokens.

    Args:
      value: Values `(*B, S, N, H)`, S ≤ L.
      kernel: W^A, `(L, L)` or `(N, L, L)`.
      bias: b, `(L,)` or `(N, L)`: one number for each token position.
      mask: Only causal masks and key lengths are honoured.
      rows: R, the number of tokens from the mask's `query_offset` on whose aligned values are returned, for decoding;
        by default all S tokens.

    Returns:
      Aligned values `(*B, R, N, H)`, where R is S by default.

    Raises:
      UsageError: W^A has another shape, S or a requested row is beyond L, the mask is of another kind, or its lengths
        are of another batch.
    """
    mask = mask or Mask()
    mask.require(BY_POSITION, by="Super Attention (an aligned mechanism)")
    length, heads, _ = value.shape[-3:]
    built = kernel.shape[-1]
    check_weight("kernel (W^A)", kernel, (built, built), (heads, built, built))
    why = "W^A is a table over token positions"
    check_rows("Super Attention", why, built, Mask() if rows is None else mask, rows or 0, length)
    first, rows = (0, length) if rows is None else (mask.query_offset, rows)
    mask.check(value.shape[:-3], rows, length)
    if bias is not None:
        check_weight("bias", bias, kernel.shape[:-1])
    if mask.key_lengths is not None:
        value = jnp.where(mask.real_keys(length)[..., None, None], value, jnp.zeros((), value.dtype))

    def cut(x, axis):
        return jax.lax.dynamic_slice_in_dim(x, first, rows, axis)

    kernel = cut(kernel, kernel.ndim - 2)[..., :length]
    if mask.causal:
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (rows, length), axis) for axis in (0, 1))
        seen = lift(column <= first + row, kernel.ndim)
        kernel = jnp.where(seen, kernel, 0.0)
    equation = "ts,...snh->...tnh" if kernel.ndim == 2 else "nts,...snh->...tnh"
    aligned = jnp.einsum(equation, kernel.astype(value.dtype), value)
    if bias is None:
        return aligned
    bias = cut(bias, bias.ndim - 1).astype(value.dtype)
    by_token = bias.T if bias.ndim == 2 else bias[:, None]
    return aligned + lift(by_token[..., None], aligned.ndim)


def _check_mlp(x: jax.Array, down: jax.Array, up: jax.Array) -> None:
    check_weight("down", down, (x.shape[-1], -1))
    check_weight("up", up, down.shape[::-1])


def _mlp(x: Float[Array, "*B C"], down: Float[Array, "C R"], up: Float[Array, "R C"]) -> Float[Array, "*B C"]:
    return jax.nn.relu(x @ down.astype(x.dtype)) @ up.astype(x.dtype)


def _times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Multiplies x by weights in the dtype of x, rounded only once."""
    return (precise(x) * weights).astype(x.dtype)


Odd = Annotated[Count, Rule("odd", lambda number: number % 2 == 1)]


class MapAttention(Checked):
    """Base of the attention of feature maps as a layer: a frozen dataclass whose fields are its options in specs."""

    def check(self, channels: int) -> None:
        """Raises UsageError where maps cannot have so many channels."""

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """Declares the learnable arrays by name."""
        raise NotImplementedError

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """Weighs the maps."""
        raise NotImplementedError

    def cost(self, height: int, width: int, channels: int) -> operations.Cost:
        """Counts the operations on one map in the program; the map and the parameters are read once."""
        params = {name: jax.ShapeDtypeStruct(p.shape, "float32") for name, p in self.parameters(channels).items()}
        x = jax.ShapeDtypeStruct((1, height, width, channels), "float32")
        numbers = 2 * x.size + sum(array.size for array in params.values())
        return operations.counted(self, params, x) + operations.Cost(bytes=operations.ITEM * numbers)


@dataclasses.dataclass(frozen=True)
class SqueezeExcitation(MapAttention):
    """Squeeze-and-excitation as a layer.

    Attributes:
      ratio: Number of channels divided by the number of hidden units.
    """

    ratio: Count = 16

    def check(self, channels: int) -> None:
        """Raises UsageError where `ratio` does not divide the channels."""
        if channels % self.ratio:
            raise UsageError(f"The option ratio={self.ratio} does not divide {channels} channels; choose a divisor.")

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """Declares the kernels of both layers of the MLP, by name; see `check`."""
        self.check(channels)
        hidden = channels // self.ratio
        shapes = {"down_kernel": (channels, hidden), "up_kernel": (hidden, channels)}
        return {name: Parameter(shape, initializers.lecun_normal()) for name, shape in shapes.items()}

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """Applies `squeeze_excitation`."""
        return squeeze_excitation(x, params["down_kernel"], params["up_kernel"])


@dataclasses.dataclass(frozen=True)
class Spatial(MapAttention):
    """The spatial attention of CBAM without its channel attention.

    Attributes:
      kernel: Side of the convolution, an odd number.
    """

    kernel: Odd = 7

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """Declares the kernel of the convolution."""
        shape = (self.kernel, self.kernel, 2, 1)
        return {"spatial_kernel": Parameter(shape, initializers.lecun_normal())}

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """Applies `spatial_attention`."""
        return spatial_attention(x, params["spatial_kernel"])


@dataclasses.dataclass(frozen=True)
class Cbam(SqueezeExcitation):
    """CBAM: channel attention, then spatial attention.

    Attributes:
      ratio: Number of channels divided by the number of hidden units.
      kernel: Side of the convolution, an odd number.
    """

    kernel: Odd = 7

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """Declares the kernels of the MLP and of the convolution."""
        return super().parameters(channels) | Spatial(self.kernel).parameters(channels)

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """Applies `cbam`."""
        return cbam(x, params["down_kernel"], params["up_kernel"], params["spatial_kernel"])
