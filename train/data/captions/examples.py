"""Examples for batches of images with captions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from train.data.images import transforms
from train.data.pairs.batches import FittingExamples, written
from train.data.pipeline import Example


@dataclasses.dataclass(frozen=True)
class Captions(FittingExamples):
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
    images: Sequence[dict[str, Any]]

    def train(self, index: int, position: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `train.data.pipeline.Examples`."""
        return self._example(index, self.data.train_transforms, rng)

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._example(index, self.data.eval_transforms, transforms.UNUSED)

    def _example(self, index: int, chain: str, rng: np.random.Generator) -> Example:
        place = self.fitting[index]
        record = self.images[int(self.split.rows[place])]
        image = transforms.apply(transforms.parse(chain), record["image"], rng)
        (ids,) = self.split.row(place)
        return {"image": image, **written(ids, self.special, self.data.target_length), "index": np.int64(place)}
