"""Batches of images from a source: augmented and mixed for training, without randomness for evaluation."""

import dataclasses
from typing import Any

import grain
import numpy as np

from train.data import pipeline
from train.data.images import chain
from train.data.images.section import ImageData
from train.data.images.sources import LabelledImages
from train.data.images.transforms import Transform

# Evaluation transforms draw nothing.
_UNUSED = np.random.default_rng(0)


def train_batches(
    source: LabelledImages, data: ImageData, seed: int, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Returns endless shuffled, augmented batches. An epoch has every example once; a batch may span two epochs.

    Args:
      source: The images.
      data: Batch size, transforms, mixup and workers.
      seed: The seed of the order, the augmentation and the mixing, which are independent of one another.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.

    Returns:
      An iterator of dicts with, for B = data.batch_size / process_count: `image` float32 (B, H, W, C), `label` int32
      (B,), and `index` int64 (B,), the example's place in `source`. With mixup also `other_label` int32 (B,) and `mix`
      float32 (B,): image = mix · image of label + (1 - mix) · image of other_label. `get_state` and `set_state` (or
      Orbax) resume it exactly, in any process; `close` it when done.

    Raises:
      UsageError: the batch size is not a multiple of the processes, or the images do not end up in one shape.
    """
    transforms = chain.parse(data.train_transforms)
    chain.output_shape(transforms, source.image_shape)
    order, augmentation, partners = np.random.SeedSequence(seed).generate_state(3).tolist()
    positions = pipeline.endless(len(source), order)
    if data.mixup:
        pairs = grain.experimental.ZipMapDataset([positions, pipeline.endless(len(source), partners)])
        examples = pairs.random_map(_Mixed(source, transforms, data.mixup), seed=augmentation)
    else:
        examples = positions.random_map(_Augmented(source, transforms), seed=augmentation)
    return pipeline.batched(examples, data, process_index, process_count)


def eval_batches(
    source: LabelledImages, data: ImageData, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Yields every example once, in order; every process gets equally many batches.

    Args:
      source: The images.
      data: Evaluation batch size and transforms.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.

    Returns:
      An iterator of dicts with `image`, `label` and `index` as in `train_batches`, and `weight` float32 (B,): 1 for an
      example, 0 for the zeros that fill up the last batch, whose index is -1.

    Raises:
      UsageError: `train_batches` would raise it.
    """
    transforms = chain.parse(data.eval_transforms)
    chain.output_shape(transforms, source.image_shape)
    example = _Whole(source, transforms)
    return pipeline.in_order(example, len(source), data, process_index, process_count)


@dataclasses.dataclass(frozen=True)
class _Augmented:
    """Returns an example of the source by index, transformed."""

    source: LabelledImages
    transforms: tuple[Transform, ...]

    def __call__(self, index: int, rng: np.random.Generator) -> dict[str, Any]:
        record = self.source[int(index)]
        image = chain.apply(self.transforms, record["image"], rng)
        return {"image": image, "label": np.int32(record["label"]), "index": np.int64(index)}


@dataclasses.dataclass(frozen=True)
class _Mixed(_Augmented):
    """Returns a mixture of two examples, which are transformed independently."""

    alpha: float

    def __call__(self, indices: tuple[int, int], rng: np.random.Generator) -> dict[str, Any]:
        example, second = (super(_Mixed, self).__call__(index, rng) for index in indices)
        mix = np.float32(rng.beta(self.alpha, self.alpha))
        image = mix * example["image"] + (1 - mix) * second["image"]
        return example | {"image": image, "other_label": second["label"], "mix": mix}


@dataclasses.dataclass(frozen=True)
class _Whole(_Augmented):
    """Returns an example with weight 1, transformed without randomness."""

    def __call__(self, index: int) -> dict[str, Any]:
        return super().__call__(index, _UNUSED) | {"weight": np.float32(1)}
