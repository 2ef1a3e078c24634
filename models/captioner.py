"""Image to text: an encoder of images under a decoder of text, with any mechanism in each of their attentions.

The image becomes tokens, the patches of a Vision Transformer (Dosovitskiy et al. 2021) or the map of a convolutional
network (Xu et al. 2015), and the rest is an encoder-decoder.
"""

import dataclasses
import math
from typing import Annotated, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from attention import operations, specs
from attention.errors import UsageError
from attention.operations import Cost
from attention.types import Checked, Count, Reader
from models import cnn, vit
from models.encoder_decoder import CrossAttentionConfig, EncoderDecoder
from models.fields import field
from models.layers.projections import Dense

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Patches(Checked):
    """Square patches, as in a Vision Transformer.

    Attributes:
      patch: Side of a patch in pixels.
    """

    patch: Count = 4

    def grid(self, image_shape: Shape) -> tuple[int, int]:
        """Counts the rows and columns of patches; see `vit.grid`."""
        return vit.grid(image_shape, self.patch, "model.encoder's patch")

    def cost(self, image_shape: Shape, width: int) -> Cost:
        """Counts the cost of the patches' projection to a width."""
        return operations.linear(math.prod(self.grid(image_shape)), self.patch**2 * image_shape[-1], width).of_data

    def __call__(self, images: Float[Array, "B H W C"], dtype: DTypeLike) -> Float[Array, "B S P"]:
        """Takes the pixels of each patch, in row-major order."""
        return vit.patches(images, self.patch).astype(dtype)


class _Network(cnn.CNNConfig):
    PATH: ClassVar[str] = ""  # its fields are options of a captioner's config, not fields


@dataclasses.dataclass(frozen=True)
class Convolutions(Checked):
    """The map of a network of convolutions, with a token at each position; see `models.cnn`.

    Attributes:
      stages: Number of stages.
      depth: Number of blocks in each stage.
      width: Channels of the first stage; each further stage has twice as many, on half the sides.
      groups: Number of groups of channels that are normalised together.
      attention: Channel or spatial attention of the blocks, such as `cbam`.
      network: The config of the network.
    """

    network: ClassVar[cnn.CNNConfig]  # no field, but it follows from them

    stages: Count = 2
    depth: Count = 1
    width: Count = 16
    groups: Count = 4
    attention: str = "none"

    def __post_init__(self):
        super().__post_init__()
        vars(self)["network"] = _Network(**dataclasses.asdict(self))

    def grid(self, image_shape: Shape) -> tuple[int, int]:
        """Counts the rows and columns of the last stage's map."""
        stride = 2 ** (self.stages - 1)
        return -(-image_shape[0] // stride), -(-image_shape[1] // stride)

    def cost(self, image_shape: Shape, width: int) -> Cost:
        """Counts the cost of the map and of its projection to a width."""
        network, positions = self.network, math.prod(self.grid(image_shape))
        return network.cost_of_map(image_shape) + operations.linear(positions, network.channels(self.stages - 1), width)

    def __call__(self, images: Float[Array, "B H W C"], dtype: DTypeLike) -> Float[Array, "B S P"]:
        """Takes the channels at each position, in row-major order."""
        features = cnn.feature_map(self.network, images, dtype)
        return features.reshape(len(features), -1, features.shape[-1])


ENCODERS = {"vit": Patches, "cnn": Convolutions}


def parse_encoder(text: str, path: str = "model.encoder") -> Patches | Convolutions:
    """Reads what makes tokens of an image, such as `vit(patch=4)`; raises UsageError if it is invalid."""
    try:
        return specs.make(text, ENCODERS, "encoder of images")
    except UsageError as error:
        raise UsageError(f"{path}={text!r} is invalid: {error}") from error


@dataclasses.dataclass(frozen=True)
class CaptionerConfig(CrossAttentionConfig):
    """The config of an encoder of images under a decoder of text."""

    name: str = "captioner"
    encoder: Annotated[str, Reader(parse_encoder)] = field(
        "vit(patch=4)",
        "What makes tokens of an image, before the encoder's blocks: `vit(patch=4)`, its patches, or `cnn(stages=2, "
        "depth=1, width=16, groups=4, attention='none')`, the map of a network of convolutions.",
    )
    norm: str = "pre"
    attention: str = field(
        "dot_product", "Spec string of the attention between an image's tokens, see `models.mechanisms`."
    )

    @property
    def images(self) -> Patches | Convolutions:
        """What makes tokens of an image."""
        return parse_encoder(self.encoder)

    def build(self, image_shape: Shape, vocabulary: int, target: int, dtype: DTypeLike = jnp.float32) -> "Captioner":
        return Captioner(self, 0, vocabulary, math.prod(self.images.grid(image_shape)), target, dtype)

    def cost(self, image_shape: Shape, vocabulary: int, target: int) -> Cost:
        tokens = math.prod(self.images.grid(image_shape))
        return self.images.cost(image_shape, self.width) + self.cost_of_tokens(tokens, target, vocabulary)


class ImageTokens(nn.Module):
    """Makes tokens of images and projects them to the model's width."""

    config: CaptionerConfig
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "B H W C"]) -> Float[Array, "B S D"]:
        return Dense((self.config.width,), dtype=self.dtype, name="embed")(self.config.images(images, self.dtype))


class Captioner(EncoderDecoder):
    """An encoder-decoder whose sources are images `(B, H, W, C)`; their lengths are None."""

    config: CaptionerConfig

    def _embed_both_sides(self) -> None:
        self.embed = ImageTokens(self.config, self.dtype)
        self.embed_target = self._embeddings(self.target_vocabulary)

    def _embedded(self, source: Float[Array, "B H W C"]) -> Float[Array, "B S D"]:
        return self.embed(source)
