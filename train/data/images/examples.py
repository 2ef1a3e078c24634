"""Examples for batches of images: augmented and mixed in training, without randomness in evaluation."""

import dataclasses

import numpy as np

from train.data import pipeline
from train.data.images import transforms
from train.data.pipeline import Example, Examples


@dataclasses.dataclass(frozen=True)
class ImageExamples(Examples):
    """The transformed images of a split.

    Examples hold `image` float32 (H, W, C), `label` int32, and `index` int64, the image's place in `split`; in
    evaluation also `weight` float32, which is 1. With mixup those of training have `other_label` int32 and `mix`
    float32: image = mix · image of label + (1 - mix) · image of other_label, both transformed independently.

    Attributes:
      data: The section of the config, an `ImageData`.
      split: The `LabelledImages`.
    """

    def train(self, index: int, position: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `train.data.pipeline.Examples`."""
        example = self._example(index, self.data.train_transforms, rng)
        if not self.data.mixup:
            return example
        partner = self._example(pipeline.endless(len(self), seed)[position], self.data.train_transforms, rng)
        mix = np.float32(rng.beta(self.data.mixup, self.data.mixup))
        image = mix * example["image"] + (1 - mix) * partner["image"]
        return example | {"image": image, "other_label": partner["label"], "mix": mix}

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._example(index, self.data.eval_transforms, transforms.UNUSED) | {"weight": np.float32(1)}

    def _example(self, index: int, chain: str, rng: np.random.Generator) -> Example:
        record = self.split[int(index)]
        image = transforms.apply(transforms.parse(chain), record["image"], rng)
        return {"image": image, "label": np.int32(record["label"]), "index": np.int64(index)}
