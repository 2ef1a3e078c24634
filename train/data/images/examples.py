"""Examples for batches of images: augmented and mixed in training, without randomness in evaluation."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from train.data import draws
from train.data.draws import Draws
from train.data.images import transforms
from train.data.images.transforms import Pixels, Transform
from train.data.pipeline import Example, Examples, Raw, Row, Rows

_TYPES = {"image": np.uint8, "label": np.int32}  # of what a device holds


class WithImages(Examples):
    """The base of examples with an image. Transforms that come before all randomness are part of reading it."""

    def record(self, number: int) -> Mapping[str, Pixels | int]:
        """Reads the `image` of an example, and its `label` where it has one."""
        raise NotImplementedError

    def prepared(self, record: Mapping[str, Pixels | int], training: bool) -> Raw:
        """Transforms an image as it is transformed every time."""
        image = record["image"]
        for transform in self._chain(training)[0]:
            image = transform(image, None)
        return record | {"image": image}

    def finished(self, raw: Raw, training: bool, draw: Draws | None = None) -> Pixels:
        """Transforms a prepared image to the end."""
        return transforms.apply(self._chain(training)[1], raw["image"], draw)

    def why_host(self, training: bool) -> str:
        """Names a transform that needs the host; see `Examples`."""
        first, rest = self._chain(training)
        if of_host := [transform.name for transform in rest if transform.host_only]:
            return f"{of_host[0]} in data.{'train' if training else 'eval'}_transforms runs on the host"
        try:
            transforms.output_shape(first, self.image_shape)
        except UsageError:
            return "the images differ in size"
        return super().why_host(training)

    def shapes(self, training: bool) -> dict[str, jax.ShapeDtypeStruct]:
        """Describes all images and labels; see `Examples`."""
        first = self.prepared(self.record(0), training)
        all_of = {
            name: jax.ShapeDtypeStruct((len(self), *np.shape(value)), _TYPES[name]) for name, value in first.items()
        }
        return super().shapes(training) | all_of

    def held(self, training: bool) -> dict[str, np.ndarray]:
        """Reads and prepares all images; see `Examples`."""
        shapes = WithImages.shapes(self, training)
        arrays = {name: np.empty(shapes[name].shape, kind) for name, kind in _TYPES.items() if name in shapes}
        for number in range(len(self)):
            for name, value in self.prepared(self.record(number), training).items():
                arrays[name][number] = value
        return super().held(training) | arrays

    def gather(self, held: dict[str, jax.Array], row: Row) -> Raw:
        """Takes an image and its label on a device; see `Examples`."""
        own = {name: held[name][row["image"]] for name in _TYPES if name in held}
        return {**super().gather(held, row), **own}

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the images before transforms; 0 is a size that varies."""
        raise NotImplementedError

    def _chain(self, training: bool) -> tuple[tuple[Transform, ...], tuple[Transform, ...]]:
        chain = self.data.train_transforms if training else self.data.eval_transforms
        return transforms.parted(transforms.parse(chain))


@dataclasses.dataclass(frozen=True)
class ImageExamples(WithImages):
    """The transformed images of a split.

    Examples hold `image` float32 (H, W, C), `label` int32, and `index` int64, the image's place in `split`; in
    evaluation also `weight` float32, which is 1. With mixup those of training have `other_label` int32 and `mix`
    float32: image = mix · image of label + (1 - mix) · image of other_label, both transformed independently.

    Attributes:
      data: The section of the config, an `ImageData`.
      split: The `LabelledImages`.
    """

    def record(self, number: int) -> Mapping[str, Pixels | int]:
        """Reads an image and its label."""
        return self.split[number]

    def rows(self, numbers: Integer[np.ndarray, " n"]) -> Rows:
        """Describes some examples; see `train.data.pipeline.Examples`."""
        return {"index": numbers, "image": numbers}

    def epoch(self, seed: int, number: int) -> Rows:
        """Orders an epoch; the images that are mixed in have an order of their own."""
        rows = super().epoch(seed, number)
        if not self.data.mixup:
            return rows
        return rows | {"partner": draws.permutation(len(self), draws.PARTNERS, seed, number)}

    def read(self, row: Row, training: bool) -> Raw:
        """Reads an image, and the one to mix in."""
        own = self.prepared(self.record(row["image"]), training)
        if "partner" not in row:
            return own
        return own | {"partner": self.prepared(self.record(row["partner"]), training)}

    def training(self, raw: Raw, row: Row, draw: Draws) -> Example:
        """Augments an image, and mixes it; see `train.data.pipeline.Examples`."""
        example = self._example(raw, row, training=True, draw=draw)
        if "partner" not in raw:
            return example
        other = self._example(raw["partner"], row, training=True, draw=draw)
        mix = np.float32(draw.generator().beta(self.data.mixup, self.data.mixup))
        image = mix * example["image"] + (1 - mix) * other["image"]
        return example | {"image": image, "other_label": other["label"], "mix": mix}

    def evaluated(self, raw: Raw, row: Row) -> Example:
        """Makes an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._example(raw, row, training=False) | {"weight": draws.namespace(row["index"]).float32(1)}

    def why_host(self, training: bool) -> str:
        """Names mixup, which draws from a Beta distribution; see `Examples`."""
        return "data.mixup runs on the host" if training and self.data.mixup else super().why_host(training)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of the images before transforms; 0 is a size that varies."""
        return self.split.image_shape

    def _example(self, raw: Raw, row: Row, training: bool, draw: Draws | None = None) -> Example:
        label = draws.namespace(row["index"]).int32(raw["label"])
        return {"image": self.finished(raw, training, draw), "label": label, "index": row["index"]}
