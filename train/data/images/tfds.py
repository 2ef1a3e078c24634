"""Images of TensorFlow Datasets, decoded the same way everywhere."""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from attention.errors import UsageError
from train.data.rows import tfds

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@dataclasses.dataclass(frozen=True)
class TfdsRecords:
    """Records of a TFDS data source as `{'image': uint8 (H, W, C), 'label': int}`.

    The images are decoded here, by Pillow: TFDS would use OpenCV where it happens to be installed, whose JPEG
    pixels differ.

    Attributes:
      content: Name and version of the set.
      encoded: The data source.
      image_key: The feature that holds the image.
      label_key: The feature that holds the label.
      mode: Pillow's mode of the images.
    """

    content: str
    encoded: Sequence[dict[str, Any]]
    image_key: str
    label_key: str
    mode: str

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self.encoded[index]
        image = Image.open(io.BytesIO(record[self.image_key]))
        pixels = np.asarray(image if image.mode == self.mode else image.convert(self.mode))
        return {"image": pixels.reshape(*pixels.shape[:2], -1), "label": int(record[self.label_key])}


def read(name: str, split: str, data: Any) -> tuple[TfdsRecords, int, tuple[int, int, int]]:
    """Opens a whole split, preparing the set first if need be and possible.

    Args:
      name: The set as TFDS writes it: `cifar100`, `name/config`, `name:1.2.3`.
      split: A plain name, no slice.
      data: Fields `data_dir`, `image_key` and `label_key`.

    Returns:
      The records, the number of classes, and the image shape with 0 for sizes that vary.

    Raises:
      UsageError: the set is unknown, not prepared and cannot be, not readable, or has no such split or feature.
    """
    package, image, label = tfds.package(), data.image_key, data.label_key
    opened = tfds.open_split(name, split, data.data_dir)
    opened.check_feature("data.image_key", image, package.features.Image)
    opened.check_feature("data.label_key", label, package.features.ClassLabel)
    shape = _shape(opened.features[image], image, name)
    encoded = opened.records({image: package.decode.SkipDecoding()})
    records = TfdsRecords(opened.builder.info.full_name, encoded, image, label, _MODES[shape[2]])
    return records, opened.features[label].num_classes, shape


def _shape(image: Any, image_key: str, dataset: str) -> tuple[int, int, int]:
    shape = tuple(size or 0 for size in image.shape)
    if np.dtype(image.np_dtype) != np.uint8 or shape[2] not in _MODES:
        raise UsageError(
            f"{image_key!r} of tfds:{dataset} is {image}, but images must be uint8 with 1, 3 or 4 channels."
        )
    return shape
