"""Chains of image transforms, written as `pad_crop(padding=4)|flip|normalise(mean=0.5, std=0.25)`."""

import dataclasses
import typing
from typing import Any

import numpy as np
from jaxtyping import Float32, UInt8

from attention.errors import UsageError, unknown
from models import specs
from train.data.images.transforms import TRANSFORMS, Normalise, Transform

# Sizes that stand for "any": tiny, and long either way.
_TRIALS = ((1, 1, 3), (40, 900, 3), (1200, 30, 3))


def parse(text: str) -> tuple[Transform, ...]:
    """Reads a spec string; '' means no transforms.

    Raises:
      UsageError: unknown names or options, options missing or of the wrong kind, or a wrong order.
    """
    calls = specs.parse(text)
    transforms = tuple(_build(call) for call in calls)
    normalised = False
    for call, transform in zip(calls, transforms, strict=True):
        if normalised and transform.bytes_only:
            raise UsageError(f"{call.name} cannot come after normalise in {text!r}; put it before.")
        normalised |= isinstance(transform, Normalise)
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


def _build(call: specs.SpecItem) -> Transform:
    if call.name not in TRANSFORMS:
        raise unknown("image transform", call.name, TRANSFORMS)
    cls = TRANSFORMS[call.name]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for option, value in call.options.items():
        if option not in fields:
            raise unknown(f"option of {call.name}", option, fields)
        if not _fits(value, hints[option]):
            raise UsageError(f"{call.name}({option}={value!r}) must be {_KINDS[hints[option]]}.")
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in call.options:
            raise UsageError(f"{call.name} needs {name}: write {call.name}({name}=...).")
    return cls(**call.options)


_KINDS = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    tuple[float, ...]: "numbers in parentheses",
    float | tuple[float, ...]: "a number or numbers in parentheses",
}


def _fits(value: Any, hint: Any) -> bool:
    def number(x):
        return isinstance(x, int | float) and not isinstance(x, bool)

    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return number(value) and isinstance(value, int)
    several = isinstance(value, tuple) and len(value) > 0 and all(number(x) for x in value)
    return number(value) if hint is float else several or (number(value) and hint != tuple[float, ...])
