"""Examples for batches of images: augmented and mixed in training, without randomness in evaluation."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from train.data import draws
from train.data.draws import Draws
from train.data.encodings.images import LabelledImages
from train.data.images import transforms
from train.data.pipeline import Example, Examples, Material, Raw, Recipe, Recipes

_TYPES = {"image": np.uint8, "label": np.int32}  # of what a device holds


@dataclasses.dataclass(frozen=True)
class Pictures(Material):
    """Images by the recipe's number `image`, and their labels where they have some.

    Transforms of the chain that come before all randomness are part of reading one; `field` names the chain in
    messages.
    """

    images: LabelledImages
    chain: str
    field: str

    def why_host(self) -> str:
        first, rest = transforms.parted(self.chain)
        if of_host := [transform.name for transform in rest if transform.host_only]:
            return f"{of_host[0]} in {self.field} runs on the host"
        try:
            transforms.output_shape(first, self.images.image_shape)
        except UsageError:
            return "the images differ in size"
        return ""

    def read(self, recipe: Recipe) -> Raw:
        return self._prepared(recipe["image"])

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        count, first = len(self.images), self._prepared(0)
        return {name: jax.ShapeDtypeStruct((count, *np.shape(of)), _TYPES[name]) for name, of in first.items()}

    def held(self) -> dict[str, np.ndarray]:
        arrays = {name: np.empty(like.shape, like.dtype) for name, like in self.shapes().items()}
        for number in range(len(self.images)):
            for name, value in self._prepared(number).items():
                arrays[name][number] = value
        return arrays

    def gather(self, held: dict[str, jax.Array], recipe: Recipe) -> Raw:
        return {name: held[name][recipe["image"]] for name in _TYPES if name in held}

    def _prepared(self, number: int) -> Raw:
        record = self.images[number]
        image = record["image"]
        for transform in transforms.parted(self.chain)[0]:
            image = transform(image, None)
        return record | {"image": image}


@dataclasses.dataclass(frozen=True)
class ImageExamples(Examples):
    """The transformed images of a split, which is a `LabelledImages`.

    Examples hold `image` float32 (H, W, C), `label` int32, and `index` int64, the image's place in the split; in
    evaluation also `weight` float32, which is 1. With mixup those of training have `other_label` int32 and `mix`
    float32: image = mix · image of label + (1 - mix) · image of other_label, both transformed independently.
    """

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        return {"index": numbers, "image": numbers}

    def epoch(self, seed: int, number: int) -> Recipes:
        """Orders an epoch; the images that are mixed in have an order of their own."""
        recipes = super().epoch(seed, number)
        if not self.data.mixup:
            return recipes
        return recipes | {"partner": draws.permutation(len(self), draws.PARTNERS, seed, number)}

    def materials(self, training: bool) -> list[Material]:
        return [Pictures(self.split, *self.data.chain(training))]

    def read(self, recipe: Recipe, training: bool) -> Raw:
        """Reads an image, and the one to mix in."""
        raw = super().read(recipe, training)
        if "partner" not in recipe:
            return raw
        return raw | {"partner": super().read({"image": recipe["partner"]}, training)}

    def training(self, raw: Raw, recipe: Recipe, draw: Draws) -> Example:
        example = self._example(raw, recipe, training=True, draw=draw)
        if "partner" not in raw:
            return example
        other = self._example(raw["partner"], recipe, training=True, draw=draw)
        mix = np.float32(draw.generator().beta(self.data.mixup, self.data.mixup))
        image = mix * example["image"] + (1 - mix) * other["image"]
        return example | {"image": image, "other_label": other["label"], "mix": mix}

    def evaluated(self, raw: Raw, recipe: Recipe) -> Example:
        weight = draws.namespace(recipe["index"]).float32(1)
        return self._example(raw, recipe, training=False) | {"weight": weight}

    def why_host(self, training: bool) -> str:
        return "data.mixup runs on the host" if training and self.data.mixup else super().why_host(training)

    def _example(self, raw: Raw, recipe: Recipe, training: bool, draw: Draws | None = None) -> Example:
        label = draws.namespace(recipe["index"]).int32(raw["label"])
        image = transforms.apply(transforms.parted(self.data.chain(training)[0])[1], raw["image"], draw)
        return {"image": image, "label": label, "index": recipe["index"]}
