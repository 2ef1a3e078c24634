"""The `data` section of a config for labelled images."""

import dataclasses
import re

import numpy as np

from attention.errors import UsageError
from train.data import stated
from train.data.images import chain, sources
from train.data.images.transforms import TRANSFORMS
from train.data.section import Section

_SHAPE = re.compile(r"\d+x\d+x[1-9]\d*")
_ANY = 256  # pixels of a side that varies


@dataclasses.dataclass(frozen=True)
class ImageData(Section):
    """Which images, in what batches, transformed how.

    Attributes:
      source: `digits`, `tfds:NAME` or `numpy:FILE.npz`; see `train.data.images.sources.load`.
      data_dir: Where TFDS sets are; '' is the environment's TFDS_DATA_DIR, else TFDS's own default.
      train_split: Such as `train[:90%]`; see `train.data.rows.splits`.
      train_transforms: A spec string; see `train.data.images.chain`. '' only scales to [0, 1].
      eval_transforms: A spec string without random transforms.
      mixup: α of the Beta(α, α) that mixes pairs of training images (Zhang et al. 2018); 0 is off.
      workers: Processes that prepare batches; 0 does it in a thread. Worth it for large images and fast devices.
      classes: How many there are, which the data must have; 0 leaves it to them, but for a dry run.
      image_shape: Of images before all transforms, `HEIGHTxWIDTHxCHANNELS` such as `32x32x3`, which the data must have;
        0 is a size that varies, '' leaves it all to the data, but for a dry run.
      image_key: Feature of a TFDS set that holds the image.
      label_key: Feature of a TFDS set that holds the label.
    """

    train_transforms: str
    eval_transforms: str
    mixup: float
    classes: int
    image_shape: str
    image_key: str = "image"
    label_key: str = "label"

    def __post_init__(self):
        super().__post_init__()
        sources.check(self.source)
        if self.mixup < 0:
            raise UsageError(f"data.mixup must be at least 0 (0 is off), but it is {self.mixup}.")
        stated.check_count("classes", self.classes)
        if self.image_shape and not _SHAPE.fullmatch(self.image_shape):
            raise UsageError(f"data.image_shape must be such as 32x32x3 (or ''), but it is {self.image_shape!r}.")
        chain.parse(self.train_transforms)
        if any(transform.random for transform in chain.parse(self.eval_transforms)):
            fixed = ", ".join(sorted(name for name, transform in TRANSFORMS.items() if not transform.random))
            raise UsageError(
                f"data.eval_transforms must give the same image every time, but it is {self.eval_transforms!r}; "
                f"use only {fixed}."
            )

    def load(self, part: str) -> sources.Source:
        """The source of `part`: 'train', 'validation' or 'test'.

        Raises:
          UsageError: it cannot be read; see `train.data.images.sources.load`.
        """
        split = getattr(self, f"{part}_split")
        keys = {"image_key": self.image_key, "label_key": self.label_key}
        source = sources.load(self.source, split, data_dir=self.data_dir, **keys)
        stated.check("classes", self.classes, source.num_classes)
        stated.check("image_shape", self.image_shape, "x".join(map(str, source.image_shape)))
        return source

    def blank(self) -> sources.Source:
        """Stands for any part in a dry run: one black image.

        Raises:
          UsageError: a size is not stated.
        """
        height, width, channels = map(int, stated.needed("image_shape", self.image_shape).split("x"))
        image = np.zeros((height or _ANY, width or _ANY, channels), np.uint8)
        classes = stated.needed("classes", self.classes)
        return sources.Source([{"image": image, "label": 0}], classes, (height, width, channels))
