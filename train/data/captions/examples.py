"""Examples for batches of images with captions."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from train.data import pipeline
from train.data.images import transforms
from train.data.pairs.batches import written
from train.data.pipeline import Example

# Evaluation transforms draw nothing.
_UNUSED = np.random.default_rng(0)


@dataclasses.dataclass(frozen=True)
class Captions(pipeline.Examples):
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

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def too_long(self) -> int:
        """How many captions are left out."""
        return len(self.split) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the captions that are short enough, end token included."""
        return np.flatnonzero(self.split.lengths("target") + 1 <= self.data.target_length)

    def train(self, index: int, position: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `train.data.pipeline.Examples`."""
        return self._example(index, self.data.train_transforms, rng)

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._example(index, self.data.eval_transforms, _UNUSED)

    def _example(self, index: int, chain: str, rng: np.random.Generator) -> Example:
        place = self.fitting[index]
        record = self.images[int(self.split.rows[place])]
        image = transforms.apply(transforms.parse(chain), record["image"], rng)
        (ids,) = self.split.row(place)
        return {"image": image, **written(ids, self.special, self.data.target_length), "index": np.int64(place)}
