"""Examples for batches of images with captions."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from jaxtyping import Integer

from train.data.draws import Draws
from train.data.encodings.images import LabelledImages
from train.data.images.examples import WithImages
from train.data.images.transforms import Pixels
from train.data.pairs.batches import FittingExamples, written
from train.data.pipeline import Example, Raw, Row, Rows
from train.data.sources.rows import digest


@dataclasses.dataclass(frozen=True)
class Captions(FittingExamples, WithImages):
    """The captioned images of a split whose captions are short enough.

    Examples hold `image` float32 (H, W, C), `tokens` int32 (T,), which the decoder reads, from the start token on,
    `targets` int32 (T,), the same one further with the end token, `weight` float32 (T,), 1 on targets that are no
    padding, and `index` int64, the place among all captions of the split, -1 for nothing.

    Attributes:
      data: The section of the config, a `CaptionData`.
      split: The `TokenisedSplit` of all captions.
      special: The `marks` of the tokeniser.
      images: The image of each row of the part that the split is cut from.
    """

    special: Mapping[str, int]
    images: LabelledImages

    @property
    def content(self) -> str:
        """A digest of the captions and their images."""
        return digest([self.split.content, self.images.content])

    def record(self, number: int) -> Mapping[str, Pixels | int]:
        """Reads the image of an example."""
        return self.images[int(self.split.rows[self.fitting[number]])]

    def rows(self, numbers: Integer[np.ndarray, " n"]) -> Rows:
        """Describes some captions; see `train.data.pipeline.Examples`."""
        return super().rows(numbers) | {"image": numbers}

    def read(self, row: Row, training: bool) -> Raw:
        """Reads a caption and its image."""
        return {**super().read(row, training), **self.prepared(self.record(row["image"]), training)}

    def training(self, raw: Raw, row: Row, draw: Draws) -> Example:
        """Augments the image; see `train.data.pipeline.Examples`."""
        return self._example(raw, row, self.finished(raw, training=True, draw=draw))

    def evaluated(self, raw: Raw, row: Row) -> Example:
        """Makes an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._example(raw, row, self.finished(raw, training=False))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the images before transforms."""
        return np.shape(self.record(0)["image"])

    def _example(self, raw: Raw, row: Row, image: Pixels) -> Example:
        target = written(raw["target"], row["target_length"], self.special)
        return {"image": image, **target, "index": row["index"]}
