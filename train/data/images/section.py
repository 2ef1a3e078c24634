"""The `data` section of a config for labelled images."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from attention.errors import UsageError
from attention.types import Positive, Reader, Sentinel
from models.fields import field
from train.data import section, sources
from train.data.encodings import images
from train.data.images import transforms
from train.data.images.examples import ImageExamples

_SHAPE = re.compile(r"\d{1,6}x\d{1,6}x[1-9]\d{0,5}", re.ASCII)
_MOST = 2**28  # bytes of an image
_ANY = 256  # pixels of a side that varies


def _check_shape(shape: str, path: str) -> None:
    if not _SHAPE.fullmatch(shape):
        raise UsageError(f"{path} must be such as 32x32x3 (or ''), but it is {shape!r}.")
    if (size := math.prod(map(int, shape.split("x")))) > _MOST:
        raise UsageError(
            f"{path}={shape} takes {size:,} bytes an image, but at most {_MOST:,} are read; make it smaller."
        )


@dataclasses.dataclass(frozen=True)
class ImageSection(section.Section):
    """The base of the sections of images: their size and their transforms."""

    train_transforms: str = field("", "A spec string; see `train.data.images.transforms`. '' only scales to [0, 1].")
    eval_transforms: str = field("", "A spec string without random transforms.")
    image_shape: Annotated[str, Sentinel("", section.LEFT), Reader(_check_shape)] = field(
        "8x8x1",
        "Of images before all transforms, `HEIGHTxWIDTHxCHANNELS` such as `32x32x3`. Images of `folder:`, `file:` and "
        "`hf:` are scaled and cropped to it, once; others must have it, and a side of 0 varies.",
        size_of=("source", "image_key"),
    )
    image_key: str = field("image", "Column of the image, or of its path. A hub set's only one has any name.")

    def __post_init__(self):
        super().__post_init__()
        height, width, channels = self.image_shape.split("x") if self.image_shape else ("1", "1", "1")
        is_one = "0" not in (height, width) and int(channels) in images.MODES
        if not is_one and not sources.is_prepared(self.source):
            raise UsageError(
                f"data.image_shape of {self.source} must be one size with 1, 3 or 4 channels, such as 64x64x3, but it "
                f"is {self.image_shape!r}."
            )
        transforms.parse(self.train_transforms)
        if any(transform.random for transform in transforms.parse(self.eval_transforms)):
            fixed = ", ".join(sorted(name for name, transform in transforms.TRANSFORMS.items() if not transform.random))
            raise UsageError(
                f"data.eval_transforms must give the same image every time, but it is {self.eval_transforms!r}; "
                f"use only {fixed}."
            )

    def chain(self, training: bool) -> tuple[str, str]:
        """Chooses the transforms of training or of evaluation, and the field that has them."""
        name = "train_transforms" if training else "eval_transforms"
        return getattr(self, name), f"data.{name}"

    def black(self) -> images.LabelledImages:
        """Makes one black image, of the shape that the config states."""
        height, width, channels = shape = self.stated_shape
        record = {"image": np.zeros((height or _ANY, width or _ANY, channels), np.uint8), "label": 0}
        return images.LabelledImages([record], 1, shape, range(1))

    @property
    def stated_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the images before transforms, where 0 varies; raises UsageError where the config lacks it."""
        height, width, channels = map(int, section.needed("image_shape", self.image_shape).split("x"))
        return height, width, channels


@dataclasses.dataclass(frozen=True)
class ImageData(ImageSection):
    """The images, their transforms and their batches."""

    source: Annotated[str, Reader(sources.checker("images"))] = field(
        "digits",
        "`digits`, `folder:DIR`, `file:TABLE` (paths and labels), `hf:NAME`, `numpy:FILE.npz` or `tfds:NAME`; see "
        "`train.data.sources`.",
    )
    train_split: str = field("train", "Such as `train[:90%]`; see `train.data.splits`.")
    batch_size: int = 64
    eval_batch_size: int = 256
    workers: int = field(0, "Processes that prepare batches. Worth it for large images and fast devices.")
    mixup: Annotated[Positive, Sentinel(0, "off")] = field(
        0.0, "α of the Beta(α, α) that mixes pairs of training images (Zhang et al. 2018)."
    )
    classes: section.Classes = field(10, **section.CLASSES)
    label_key: str = field("label", "Column of the class, likewise.")
    revision: str = field("", "Of a hub set: a branch, tag or commit; '' is the default one.")
    cache_dir: str = section.cache_dir("images of one size are")

    COLUMNS: ClassVar[Mapping[str, str]] = {"image": "image_key", "label": "label_key"}

    def load(self) -> dict[str, ImageExamples]:
        """Opens the images of all splits, by the names of `splits.PARTS`; see `train.data.encodings.images.load`."""
        parts = images.load(self)
        for part in parts.values():
            section.check_stated("classes", self.classes, part.num_classes)
            section.check_stated("image_shape", self.image_shape, section.sides(part.image_shape))
        return {name: ImageExamples(self, part) for name, part in parts.items()}

    def blank(self) -> ImageExamples:
        """Makes an example of one black image, for dry runs; raises UsageError where a size is not stated."""
        return ImageExamples(
            self, dataclasses.replace(self.black(), num_classes=section.needed("classes", self.classes))
        )
