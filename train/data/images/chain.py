"""Chains of image transforms, written as `pad_crop(padding=4)|flip|normalise(mean=0.5, std=0.25)`."""

import functools
import itertools

import numpy as np
from jaxtyping import Float32, UInt8

from attention.errors import UsageError, unknown
from models import specs
from train.data import options
from train.data.images.transforms import TRANSFORMS, Normalise, Transform

# Sizes that stand for "any": tiny, and long either way.
_TRIALS = ((1, 1, 3), (40, 900, 3), (1200, 30, 3))


@functools.cache
def parse(text: str) -> tuple[Transform, ...]:
    """Reads a spec string; '' means no transforms.

    Raises:
      UsageError: unknown names or options, options missing or of the wrong kind, or a wrong order.
    """
    transforms = tuple(map(_build, specs.parse(text)))
    for transform in list(itertools.dropwhile(lambda transform: not isinstance(transform, Normalise), transforms))[1:]:
        if transform.bytes_only:
            raise UsageError(f"{transform.name} cannot come after normalise in {text!r}; put it before.")
    return transforms


def apply(
    transforms: tuple[Transform, ...], image: UInt8[np.ndarray, "h w c"], rng: np.random.Generator
) -> Float32[np.ndarray, "H W C"]:
    """Returns the image after all transforms, as float32; on the scale [0, 1] if none of them normalises."""
    for transform in transforms:
        image = transform(image, rng)
    return image if image.dtype == np.float32 else image * np.float32(1 / 255)


def output_shape(transforms: tuple[Transform, ...], image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Returns (H, W, C) after the transforms, by transforming an image of zeros.

    Args:
      transforms: The transforms, from `parse`.
      image_shape: The shape of the images before; 0 is a size that varies, which is tried small and large.

    Raises:
      UsageError: the shape after the transforms still varies, or a transform cannot take such images.
    """
    rng = np.random.default_rng(0)
    trials = [tuple(size or other for size, other in zip(image_shape, trial, strict=True)) for trial in _TRIALS]
    shapes = {apply(transforms, np.zeros(trial, np.uint8), rng).shape for trial in trials}
    if len(shapes) > 1:
        raise UsageError(
            "The images differ in size and the transforms leave it so: end data.train_transforms and "
            "data.eval_transforms with one size, such as 'resize(size=128, keep_aspect=True)|center_crop(size=112)'."
        )
    return shapes.pop()


def _build(item: specs.SpecItem) -> Transform:
    if item.name not in TRANSFORMS:
        raise unknown("image transform", item.name, TRANSFORMS)
    options.check(item, TRANSFORMS[item.name])
    return TRANSFORMS[item.name](**item.options)
