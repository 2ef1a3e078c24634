"""Image transforms, in chains such as `pad_crop(padding=4)|flip|normalise(mean=0.5, std=0.25)`.

A transform is a frozen dataclass of its options, called with an image and its draws. Images are (H, W, C), and uint8
until `normalise` makes them float32. Transforms that interpolate use Pillow, on the host; the others work in numpy and
jax.numpy alike, bit for bit.
"""

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Float, Float32, Num, UInt8
from PIL import Image

from attention import specs
from attention.errors import UsageError
from attention.types import (
    Checked,
    Count,
    NotNegative,
    Number,
    Positive,
    Rule,
    Share,
    Size,
    at_least,
    at_most,
    below,
)
from train.data.draws import Draws, namespace

MOST = 2**14  # the largest side in pixels, and any other number of a transform
Side = Annotated[Count, at_most(MOST)]
Levels = Annotated[
    Number | tuple[Number, ...],
    Rule(f"at most {MOST}", lambda levels: np.size(levels) > 0 and np.max(np.abs(levels)) <= MOST),
]
RISING = Rule("a low bound, then a high one", lambda bounds: len(bounds) == 2 and bounds[0] <= bounds[1])
Strength = Annotated[NotNegative, at_most(MOST)]
_BILINEAR = Image.Resampling.BILINEAR
Pixels = Num[np.ndarray, "_ _ _"]
_Channels = Float32[np.ndarray, " c"]
_TO_ONE = (np.full(1, 1 / 255, np.float32), np.zeros(1, np.float32))
# Shapes that stand for "any": tiny, wide, and tall.
_TRIALS = ((1, 1, 3), (40, 900, 3), (1200, 30, 3))


@dataclasses.dataclass(frozen=True)
class Transform(Checked):
    """The base of all transforms; subclasses add options as fields.

    Some draw (`random`), some need uint8 (`bytes_only`) and so come before `normalise`, some run on the host only.
    Spec strings name them like `center_crop`.
    """

    random: ClassVar[bool]
    bytes_only: ClassVar[bool]
    host_only: ClassVar[bool]
    name: ClassVar[str]

    def __init_subclass__(cls, random: bool = False, bytes_only: bool = False, host_only: bool = False):
        cls.random, cls.bytes_only, cls.host_only = random, bytes_only, host_only
        cls.name = re.sub(r"\B(?=[A-Z])", "_", cls.__name__).lower()

    def __call__(self, image: Pixels, draw: Draws) -> Pixels:
        """Transforms an image."""


@dataclasses.dataclass(frozen=True)
class Resize(Transform, bytes_only=True, host_only=True):
    """Resizes bilinearly with antialiasing to `size` × `size`, or the shorter side to `size` with `keep_aspect`."""

    size: Side
    keep_aspect: bool = False

    def __call__(self, image, draw):
        height, width = image.shape[:2]
        scale = self.size / min(height, width)
        to = (round(width * scale), round(height * scale)) if self.keep_aspect else (self.size, self.size)
        return _resized(image, to)


@dataclasses.dataclass(frozen=True)
class CenterCrop(Transform):
    """Crops the `size` × `size` pixels in the middle."""

    size: Side

    def __call__(self, image, draw):
        height, width = image.shape[:2]
        if min(height, width) < self.size:
            raise UsageError(
                f"center_crop(size={self.size}) is larger than an image of {height}×{width}; put a resize before it."
            )
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return image[top : top + self.size, left : left + self.size]


@dataclasses.dataclass(frozen=True)
class Pad(Transform):
    """Pads the image with zeros to `to` × `to`; an odd row goes below, and an odd column to the right."""

    to: Side

    def __call__(self, image, draw):
        height, width = image.shape[:2]
        if max(height, width) > self.to:
            raise UsageError(f"pad(to={self.to}) is smaller than an image of {height}×{width}; pad to more or resize.")
        top, left = (self.to - height) // 2, (self.to - width) // 2
        return namespace(image).pad(image, ((top, self.to - height - top), (left, self.to - width - left), (0, 0)))


@dataclasses.dataclass(frozen=True)
class PadCrop(Transform, random=True):
    """Shifts the image by up to `padding` pixels: pads it with zeros on every side, then crops the original size."""

    padding: Annotated[Size, at_most(MOST)] = 4

    def __call__(self, image, draw):
        height, width = image.shape[:2]
        top, left = draw.integer(2 * self.padding + 1), draw.integer(2 * self.padding + 1)
        padded = namespace(image).pad(image, ((self.padding, self.padding), (self.padding, self.padding), (0, 0)))
        return padded[top + np.arange(height)][:, left + np.arange(width)]


@dataclasses.dataclass(frozen=True)
class Flip(Transform, random=True):
    """Swaps left and right with probability `p`."""

    p: Share = 0.5

    def __call__(self, image, draw):
        return namespace(image).where(draw.chance(self.p), image[:, ::-1], image)


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Transform, random=True, bytes_only=True, host_only=True):
    """Crops a random part of the image and resizes it to `size` × `size` (Szegedy et al. 2015).

    `scale` bounds the part's share of the area, and `ratio` its width over its height. If none of ten draws fits into
    the image, the largest part within `ratio` is taken.
    """

    size: Side
    scale: Annotated[tuple[Annotated[Positive, at_most(1)], ...], RISING] = (0.08, 1.0)
    ratio: Annotated[tuple[Annotated[Positive, at_most(MOST)], ...], RISING] = (3 / 4, 4 / 3)

    def __call__(self, image, draw):
        height, width = self._extent(image, draw)
        top, left = draw.integer(image.shape[0] - height + 1), draw.integer(image.shape[1] - width + 1)
        return _resized(image[top : top + height, left : left + width], (self.size, self.size))

    def _extent(self, image, draw) -> tuple[int, int]:
        full_height, full_width = image.shape[:2]
        for _ in range(10):
            area = full_height * full_width * draw.uniform(*self.scale)
            ratio = math.exp(draw.uniform(*map(math.log, self.ratio)))
            height, width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < height <= full_height and 0 < width <= full_width:
                return height, width
        ratio = min(max(full_width / full_height, self.ratio[0]), self.ratio[1])
        return max(1, min(full_height, round(full_width / ratio))), max(1, min(full_width, round(full_height * ratio)))


@dataclasses.dataclass(frozen=True)
class ColourJitter(Transform, random=True, bytes_only=True, host_only=True):
    """Scales brightness, contrast and saturation, in this order, by factors in [max(0, 1 - option), 1 + option]."""

    brightness: Strength = 0.0
    contrast: Strength = 0.0
    saturation: Strength = 0.0

    def __call__(self, image, draw):
        strengths = self.brightness, self.contrast, self.saturation
        brightness, contrast, saturation = (draw.uniform(max(0, 1 - strength), 1 + strength) for strength in strengths)
        pixels = np.clip(image * np.float32(brightness), 0, 255)
        pixels = _blend(_grey(pixels).mean(), pixels, contrast)
        pixels = _blend(_grey(pixels), pixels, saturation)
        return np.round(pixels).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Rotate(Transform, random=True, bytes_only=True, host_only=True):
    """Rotates about the centre by an angle in [-degrees, degrees], bilinearly, with zeros outside the image."""

    degrees: Annotated[Number, at_least(-MOST), at_most(MOST)]

    def __call__(self, image, draw):
        angle = draw.uniform(-abs(self.degrees), abs(self.degrees))
        return _by_pillow(image, lambda picture: picture.rotate(angle, _BILINEAR))


@dataclasses.dataclass(frozen=True)
class Zoom(Transform, random=True, bytes_only=True, host_only=True):
    """Zooms about the centre: height and width independently to 1 / (1 + u) of the size, u in [-factor, factor].

    u > 0 zooms out, as in Keras' RandomZoom layer, with zeros outside the image.
    """

    factor: Annotated[NotNegative, below(1)]

    def __call__(self, image, draw):
        high, wide = (1 + draw.uniform(-self.factor, self.factor) for _ in range(2))
        height, width = image.shape[:2]
        affine = (wide, 0, width / 2 * (1 - wide), 0, high, height / 2 * (1 - high))
        return _by_pillow(image, lambda p: p.transform(p.size, Image.Transform.AFFINE, affine, _BILINEAR))


@dataclasses.dataclass(frozen=True)
class Normalise(Transform, bytes_only=True):
    """Computes (image / 255 - mean) / std as float32; `mean` and `std` are one number, or one per channel."""

    mean: Levels
    std: Annotated[Levels, Rule("above 0", lambda std: np.min(std) > 0)]

    def __post_init__(self):
        super().__post_init__()
        if len({np.size(self.mean), np.size(self.std)} - {1}) > 1:
            raise UsageError(f"normalise needs as many means as stds, but they are {self.mean} and {self.std}.")

    def __call__(self, image, draw):
        scale, shift = self._affine
        if len(scale) not in (1, image.shape[2]):
            raise UsageError(
                f"normalise has mean={self.mean} and std={self.std}, but the images have {image.shape[2]} channels: "
                "give one number, or one per channel."
            )
        return _by_table(image, scale, shift)

    @functools.cached_property
    def _affine(self) -> tuple[_Channels, _Channels]:
        mean, std = np.broadcast_arrays(np.atleast_1d(self.mean), np.atleast_1d(self.std))
        return (1 / (255 * std)).astype(np.float32), (mean / std).astype(np.float32)


TRANSFORMS: dict[str, type[Transform]] = {transform.name: transform for transform in Transform.__subclasses__()}


def _by_table(image: UInt8[np.ndarray, "h w c"], scale: _Channels, shift: _Channels) -> Float32[np.ndarray, "h w c"]:
    """Computes image * scale - shift; on a device from a table of all bytes, since compilers round only once there."""
    if isinstance(image, np.ndarray):
        return image * scale - shift
    table = np.arange(256, dtype=np.uint8)[:, None] * scale - shift
    table = np.broadcast_to(table, (256, image.shape[2]))
    return namespace(image).asarray(table)[image, np.arange(image.shape[2])]


def _by_pillow(
    image: UInt8[np.ndarray, "h w c"], operation: Callable[[Image.Image], Image.Image]
) -> UInt8[np.ndarray, "H W c"]:
    """Runs a Pillow operation, channel by channel unless there are three: Pillow treats a fourth as alpha."""
    if image.shape[2] == 3:
        return np.asarray(operation(Image.fromarray(image)))
    return np.stack([np.asarray(operation(Image.fromarray(c))) for c in np.moveaxis(image, 2, 0)], axis=2)


def _resized(image: UInt8[np.ndarray, "h w c"], to: tuple[int, int]) -> UInt8[np.ndarray, "H W c"]:
    return _by_pillow(image, lambda picture: picture.resize(to, _BILINEAR))


def _grey(pixels: Float[np.ndarray, "h w c"]) -> Float[np.ndarray, "h w 1"]:
    # ITU-R 601's luma of RGB, or the channels' mean
    weights = [0.299, 0.587, 0.114] if pixels.shape[2] == 3 else np.full(pixels.shape[2], 1 / pixels.shape[2])
    return (pixels @ np.asarray(weights, np.float32))[..., None]


def _blend(
    towards: float | np.ndarray, pixels: Float[np.ndarray, "h w c"], factor: float
) -> Float[np.ndarray, "h w c"]:
    return np.clip(towards + np.float32(factor) * (pixels - towards), 0, 255)


@functools.cache
def parse(text: str) -> tuple[Transform, ...]:
    """Reads a spec string, '' for none; raises UsageError for a mistake in names, options or order."""
    transforms = tuple(specs.build(item, TRANSFORMS, "image transform") for item in specs.parse(text))
    for transform in list(itertools.dropwhile(lambda transform: not isinstance(transform, Normalise), transforms))[1:]:
        if transform.bytes_only:
            raise UsageError(f"{transform.name} cannot come after normalise in {text!r}; put it before.")
    return transforms


def apply(
    transforms: tuple[Transform, ...], image: UInt8[np.ndarray, "h w c"], draw: Draws | None = None
) -> Float32[np.ndarray, "H W C"]:
    """Applies all transforms; gives float32, scaled to [0, 1] if none of them normalises."""
    for transform in transforms:
        image = transform(image, draw)
    return image if image.dtype == np.float32 else _by_table(image, *_TO_ONE)


@functools.cache
def split_chain(text: str) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
    """Splits a chain into its first transforms, which give an image the same bytes every time, and the rest."""
    transforms = parse(text)
    first = tuple(itertools.takewhile(lambda one: not one.random and not isinstance(one, Normalise), transforms))
    return first, transforms[len(first) :]


def output_shape(transforms: tuple[Transform, ...], image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Finds (H, W, C) after the transforms by transforming zeros; a size of 0 varies, and is tried small and large.

    Raises UsageError if the shape still varies after them, or a transform cannot take such images.
    """
    trials = [tuple(size or other for size, other in zip(image_shape, trial, strict=True)) for trial in _TRIALS]
    shapes = {apply(transforms, np.zeros(trial, np.uint8), Draws()).shape for trial in trials}
    if len(shapes) > 1:
        raise UsageError(
            "The images differ in size and the transforms leave it so: end data.train_transforms and "
            "data.eval_transforms with one size, such as 'resize(size=128, keep_aspect=True)|center_crop(size=112)'."
        )
    return shapes.pop()
