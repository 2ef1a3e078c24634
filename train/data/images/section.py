"""Labelled images: the `data` section, and the examples, which only training augments and mixes."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Annotated, ClassVar

import jax
import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from attention.types import Positive, Reader, Sentinel
from models.fields import field
from train.data import draws, section, sources
from train.data.draws import Draws
from train.data.encodings import images
from train.data.encodings.images import LabelledImages
from train.data.images import transforms
from train.data.pipeline import Example, Examples, Material, Raw, Recipe, Recipes

_SHAPE = re.compile(r"\d{1,6}x\d{1,6}x[1-9]\d{0,5}", re.ASCII)
_MOST = 2**28  # bytes of an image
_ANY = 256  # pixels, for a side that varies
_TYPES = {"image": np.uint8, "label": np.int32}  # on a device


@dataclasses.dataclass(frozen=True)
class Pictures(Material):
    """Images by the recipe's number `image`, with their labels if they have some.

    Reading an image applies the transforms at the chain's start, before all randomness; messages call the chain by its
    `field`.
    """

    images: LabelledImages
    chain: str
    field: str

    def why_host(self) -> str:
        first, rest = transforms.split_chain(self.chain)
        if host_only := [transform.name for transform in rest if transform.host_only]:
            return f"{host_only[0]} in {self.field} runs on the host"
        try:
            transforms.output_shape(first, self.images.image_shape)
        except UsageError:
            return "the images differ in size"
        return ""

    def read(self, recipe: Recipe) -> Raw:
        record = self._record(recipe["image"])
        return record | {"partner": self._record(recipe["partner"])} if "partner" in recipe else record

    def _record(self, number: int) -> Raw:
        record = self.images[number]
        image = record["image"]
        for transform in transforms.split_chain(self.chain)[0]:
            image = transform(image, None)
        return record | {"image": image}

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        count, first = len(self.images), self._record(0)
        return {name: jax.ShapeDtypeStruct((count, *np.shape(array)), _TYPES[name]) for name, array in first.items()}

    def held(self) -> dict[str, np.ndarray]:
        arrays = {name: np.empty(like.shape, like.dtype) for name, like in self.shapes().items()}
        for number in range(len(self.images)):
            for name, value in self._record(number).items():
                arrays[name][number] = value
        return arrays

    def gather(self, held: dict[str, jax.Array], recipe: Recipe) -> Raw:
        return {name: held[name][recipe["image"]] for name in _TYPES if name in held}


@dataclasses.dataclass(frozen=True)
class ImageExamples(Examples):
    """The transformed images of a split, which is a `LabelledImages`.

    Examples hold `image` float32 (H, W, C), `label` int32, and `index` int64, the image's place in the split; in
    evaluation also `weight` float32, which is 1. Mixup adds `other_label` int32 and `mix` float32 in training:
    image = mix · image of label + (1 - mix) · image of other_label, both transformed independently.
    """

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        return {"index": numbers, "image": numbers}

    def epoch(self, seed: int, number: int) -> Recipes:
        """Orders an epoch; mixup's partners have an order of their own."""
        recipes = super().epoch(seed, number)
        if not self.data.mixup:
            return recipes
        return recipes | {"partner": draws.permutation(len(self), draws.PARTNERS, seed, number)}

    def materials(self, training: bool) -> list[Material]:
        return [Pictures(self.split, *self.data.chain(training))]

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        xp, image = draws.namespace(recipe["index"]), self.data.transformed(raw["image"], draw)
        example = {"image": image, "label": xp.int32(raw["label"]), "index": recipe["index"]}
        if draw is None:
            return example | {"weight": xp.float32(1)}
        if "partner" not in raw:
            return example
        other = self.data.transformed(raw["partner"]["image"], draw)
        mix = np.float32(draw.generator().beta(self.data.mixup, self.data.mixup))
        mixed = {"image": mix * image + (1 - mix) * other, "mix": mix}
        return example | mixed | {"other_label": xp.int32(raw["partner"]["label"])}

    def why_host(self, training: bool) -> str:
        return "data.mixup runs on the host" if training and self.data.mixup else super().why_host(training)


def _check_shape(shape: str, path: str) -> None:
    if not _SHAPE.fullmatch(shape):
        raise UsageError(f"{path} must be such as 32x32x3 (or ''), but it is {shape!r}.")
    if (size := math.prod(map(int, shape.split("x")))) > _MOST:
        raise UsageError(
            f"{path}={shape} takes {size:,} bytes an image, but at most {_MOST:,} are read; make it smaller."
        )


@dataclasses.dataclass(frozen=True)
class ImageSection(section.Section):
    """The base of sections with images: their size and their transforms."""

    train_transforms: str = field(
        "", "Transforms as a spec string; see `train.data.images.transforms`. '' only scales to [0, 1]."
    )
    eval_transforms: str = field("", "Spec string without random transforms.")
    image_shape: Annotated[str, Sentinel("", section.LEFT), Reader(_check_shape)] = field(
        "8x8x1",
        "Shape before all transforms, `HEIGHTxWIDTHxCHANNELS` such as `32x32x3`. Images of `folder:`, `file:` and "
        "`hf:` are scaled and cropped to it, once; others must have it, and a side of 0 varies.",
        size_of=("source", "image_key"),
    )
    image_key: str = field(
        "image", "Column of the image, or of its path. In a hub set, the only such column may have any name."
    )

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
        """Chooses the transforms for training or evaluation, and names their field."""
        name = "train_transforms" if training else "eval_transforms"
        return getattr(self, name), f"data.{name}"

    def transformed(self, image: np.ndarray, draw: Draws | None) -> np.ndarray:
        """Applies the transforms that reading an image did not."""
        return transforms.apply(transforms.split_chain(self.chain(draw is not None)[0])[1], image, draw)

    def black(self) -> LabelledImages:
        """Makes one black image of the shape that the config states."""
        height, width, channels = shape = self.stated_shape
        record = {"image": np.zeros((height or _ANY, width or _ANY, channels), np.uint8), "label": 0}
        return LabelledImages([record], 1, shape, range(1))

    @property
    def stated_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of images before transforms, where 0 varies; raises UsageError if the config does not state it."""
        height, width, channels = map(int, section.needed("image_shape", self.image_shape).split("x"))
        return height, width, channels


@dataclasses.dataclass(frozen=True)
class ImageData(ImageSection):
    """Labelled images."""

    source: Annotated[str, Reader(sources.checker("images"))] = field(
        "digits",
        "`digits`, `folder:DIR`, `file:TABLE` (paths and labels), `hf:NAME`, `numpy:FILE.npz` or `tfds:NAME`; see "
        "`train.data.sources`.",
    )
    train_split: str = field("train", "Split to learn from, such as `train[:90%]`; see `train.data.splits`.")
    batch_size: int = 64
    eval_batch_size: int = 256
    workers: int = field(0, "Processes that prepare batches. Worth it for large images and fast devices.")
    mixup: Annotated[Positive, Sentinel(0, "off")] = field(
        0.0, "α of the Beta(α, α) that mixes pairs of training images (Zhang et al. 2018)."
    )
    classes: section.Classes = field(10, **section.CLASSES)
    label_key: str = field("label", "Column of the class, as in `image_key`.")
    revision: str = field("", "Branch, tag or commit of a hub set; '' is the default one.")
    cache_dir: str = section.cache_dir("images of one size are")

    COLUMNS: ClassVar[Mapping[str, str]] = {"image": "image_key", "label": "label_key"}

    def load(self) -> dict[str, ImageExamples]:
        """Opens the examples of all splits, by the names of `splits.PARTS`."""
        parts = images.load(self)
        for part in parts.values():
            section.check_stated("classes", self.classes, part.num_classes)
            section.check_stated("image_shape", self.image_shape, section.sides(part.image_shape))
        return {name: ImageExamples(self, part) for name, part in parts.items()}

    def blank(self) -> ImageExamples:
        """Makes examples of one black image, for dry runs; raises UsageError if a size is not stated."""
        return ImageExamples(
            self, dataclasses.replace(self.black(), num_classes=section.needed("classes", self.classes))
        )
