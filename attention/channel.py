"""Channel and spatial attention of feature maps: which channels count, and where (Wikipedia describes both).

Each gives a weight between 0 and 1 to every channel, or to every position, and multiplies by it. Feature maps are
`(*B, H, W, C)`: height, width, channels.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Float

from attention import operations
from attention.errors import UsageError
from attention.kernels.call import check_weight
from attention.kernels.reference import precise
from attention.score import Parameter, Params, is_count


def squeeze_excitation(
    x: Float[Array, "*B H W C"], down: Float[Array, "C R"], up: Float[Array, "R C"]
) -> Float[Array, "*B H W C"]:
    """x · σ(W2 ReLU(W1 z)) for each channel, where z is its mean over the map (Hu et al. 2018, eq. 2 to 4).

    Args:
      x: Feature maps.
      down: W1, without a bias as in the paper.
      up: W2, likewise.

    Raises:
      UsageError: weights that do not fit the channels or each other.
    """
    _check_mlp(x, down, up)
    return _times(x, jax.nn.sigmoid(_mlp(precise(x).mean((-3, -2)), down, up))[..., None, None, :])


def channel_attention(
    x: Float[Array, "*B H W C"], down: Float[Array, "C R"], up: Float[Array, "R C"]
) -> Float[Array, "*B H W C"]:
    """x · σ(MLP(mean) + MLP(max)) for each channel, of its mean and maximum over the map (Woo et al. 2018, eq. 2).

    Args:
      x: Feature maps.
      down: W0 of the one MLP, without a bias.
      up: W1 of it, after a ReLU.

    Raises:
      UsageError: weights that do not fit the channels or each other.
    """
    _check_mlp(x, down, up)
    pooled = precise(x).mean((-3, -2)), precise(x).max((-3, -2))
    return _times(x, jax.nn.sigmoid(sum(_mlp(one, down, up) for one in pooled))[..., None, None, :])


def spatial_attention(x: Float[Array, "*B H W C"], kernel: Float[Array, "K K 2 1"]) -> Float[Array, "*B H W C"]:
    """x · σ(f([mean; max])) for each position, f a convolution of its channels' mean and maximum (Woo et al., eq. 3).

    Args:
      x: Feature maps.
      kernel: f's, K odd; zeros are around the map. 7 x 7 in the paper.

    Raises:
      UsageError: another shape, or K even, which has no middle.
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
    """Channel attention, then spatial attention (Woo et al. 2018, eq. 1)."""
    return spatial_attention(channel_attention(x, down, up), kernel)


def _check_mlp(x: jax.Array, down: jax.Array, up: jax.Array) -> None:
    check_weight("down", down, (x.shape[-1], -1))
    check_weight("up", up, down.shape[::-1])


def _mlp(x: Float[Array, "*B C"], down: Float[Array, "C R"], up: Float[Array, "R C"]) -> Float[Array, "*B C"]:
    return jax.nn.relu(x @ down.astype(x.dtype)) @ up.astype(x.dtype)


def _times(x: jax.Array, weights: jax.Array) -> jax.Array:
    """In the dtype of x, rounded once."""
    return (precise(x) * weights).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class SqueezeExcitation:
    """Squeeze-and-excitation.

    Attributes:
      ratio: How many times fewer hidden units there are than channels.
    """

    ratio: int = 16

    def __post_init__(self):
        if not is_count(self.ratio):
            raise UsageError(f"The option ratio must be a whole number above 0, not {self.ratio!r}.")

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """Both layers of the MLP, by name.

        Raises:
          UsageError: `ratio` does not divide the channels.
        """
        if channels % self.ratio:
            raise UsageError(f"The option ratio={self.ratio} does not divide {channels} channels; choose a divisor.")
        hidden = channels // self.ratio
        shapes = {"down_kernel": (channels, hidden), "up_kernel": (hidden, channels)}
        return {name: Parameter(shape, initializers.lecun_normal()) for name, shape in shapes.items()}

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """See `squeeze_excitation`."""
        return squeeze_excitation(x, params["down_kernel"], params["up_kernel"])

    def cost(self, height: int, width: int, channels: int) -> operations.Cost:
        """Of one feature map: the mean, the MLP with its ReLU and sigmoid, and the product with the map."""
        size = height * width * channels
        return self._mlp(channels) + operations.Cost(
            pointwise=size * 2 + 3 * channels, bytes=operations.ITEM * 2 * size
        )

    def _mlp(self, channels: int, vectors: int = 1) -> operations.Cost:
        hidden = channels // self.ratio
        layers = operations.matmul(vectors, channels, hidden) + operations.matmul(vectors, hidden, channels)
        return layers + operations.Cost(pointwise=vectors * hidden)


@dataclasses.dataclass(frozen=True)
class Spatial:
    """CBAM's spatial attention alone.

    Attributes:
      kernel: Side of the convolution, odd.
    """

    kernel: int = 7

    def __post_init__(self):
        if not is_count(self.kernel) or self.kernel % 2 == 0:
            raise UsageError(f"The option kernel must be an odd whole number above 0, not {self.kernel!r}.")

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """The convolution."""
        shape = (self.kernel, self.kernel, 2, 1)
        return {"spatial_kernel": Parameter(shape, initializers.lecun_normal())}

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """See `spatial_attention`."""
        return spatial_attention(x, params["spatial_kernel"])

    def cost(self, height: int, width: int, channels: int) -> operations.Cost:
        """Of one feature map: mean and maximum, the convolution with its sigmoid, and the product with the map."""
        places = height * width
        own = operations.Cost(pointwise=places * (3 * channels + 4), bytes=operations.ITEM * 2 * places * channels)
        return operations.convolution(height, width, self.kernel, 2, 1) + own


@dataclasses.dataclass(frozen=True)
class Cbam(SqueezeExcitation):
    """CBAM: channel attention, then spatial attention.

    Attributes:
      ratio: How many times fewer hidden units there are than channels.
      kernel: Side of the convolution, odd.
    """

    kernel: int = 7

    def __post_init__(self):
        super().__post_init__()
        Spatial(self.kernel)

    def parameters(self, channels: int) -> dict[str, Parameter]:
        """The MLP and the convolution."""
        return super().parameters(channels) | Spatial(self.kernel).parameters(channels)

    def __call__(self, params: Params, x: Float[Array, "*B H W C"]) -> Float[Array, "*B H W C"]:
        """See `cbam`."""
        return cbam(x, params["down_kernel"], params["up_kernel"], params["spatial_kernel"])

    def cost(self, height: int, width: int, channels: int) -> operations.Cost:
        """Of one feature map: mean and maximum through the MLP, the product, then as spatial attention."""
        size = height * width * channels
        product = operations.Cost(pointwise=size * 3 + 5 * channels, bytes=operations.ITEM * 2 * size)
        return self._mlp(channels, 2) + product + Spatial(self.kernel).cost(height, width, channels)
