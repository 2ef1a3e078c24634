"""Labelled images by name, such as `digits` or `folder:DIR`, as random-access records."""

import dataclasses
import functools
import hashlib
import importlib.util
import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Integer, UInt8
from PIL import Image

from attention.errors import UsageError, check_known, unknown
from models.files import Arrays
from train.data.images.stored import MODES, store
from train.data.rows import classes, source, splits, tfds
from train.data.rows.rows import DataColumn, Picture
from train.data.rows.splits import Split
from train.data.store import cache

KINDS = ("digits", "folder:DIR", "file:TABLE", "hf:NAME", "numpy:FILE.npz", "tfds:NAME")
DECODED = ("folder:", "file:", "hf:")  # which have images of any size and mode
IMAGE_KEY, LABEL_KEY = "image", "label"  # the defaults, which stand for the only column of their kind
MOST_CLASSES = 2**24
KEPT_BYTES = 2**28  # of decoded images; those of a larger TFDS set are decoded each time


@dataclasses.dataclass(frozen=True)
class LabelledImages(Sequence):
    """A random-access sequence of `{'image': uint8 (H, W, C), 'label': int}`.

    Attributes:
      records: Examples by index; their `content` identifies them.
      num_classes: Labels are 0 … num_classes - 1.
      image_shape: (H, W, C) of every image; 0 stands for a size that differs from image to image.
      places: The indices of the examples among the records.
      class_names: The names of the classes, in the order of their numbers; () where the source names none.
      shuffled: Whether slices are cut from a random order, always the same.
      split: The split that it is.
    """

    records: Sequence[dict[str, Any]]
    num_classes: int
    image_shape: tuple[int, int, int]
    places: Sequence[int]
    class_names: tuple[str, ...] = ()
    shuffled: bool = False
    split: Split = Split("", "")  # noqa: RUF009

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.records[int(self.places[index])]

    @property
    def content(self) -> str:
        """A digest of all records, or the name and version of a TFDS set."""
        return self.records.content

    def view(self, split: Split) -> "LabelledImages":
        """Returns the slice of this source, a whole part, that `split` names."""
        sliced = self.shuffled and not split.is_whole
        places = splits.shuffled(split, self.__len__) if sliced else range(*split.bounds(len(self)))
        fields = self.num_classes, self.image_shape, places, self.class_names, self.shuffled
        return LabelledImages(self.records, *fields, split=split)


class LabelledArrays(LabelledImages):
    """Labelled images in memory."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, num_classes: int = 0, class_names: tuple[str, ...] = ()):
        """Takes images with or without a channel axis.

        Args:
          images: uint8 (n, H, W) or (n, H, W, C).
          labels: Integers (n,), at least 0.
          num_classes: 0 counts them: the largest label and 1.
          class_names: Their names, if there are any.

        Raises:
          UsageError: the arrays have another dtype or shape.
        """
        images, labels = np.asarray(images), np.asarray(labels)
        _check_arrays(images, labels)
        images = images[..., None] if images.ndim == 3 else images
        count = num_classes or int(labels.max()) + 1
        super().__init__(_Arrays(images, labels), count, images.shape[1:], range(len(labels)), class_names)


@dataclasses.dataclass(frozen=True)
class _Arrays:
    images: UInt8[np.ndarray, "n h w c"]
    labels: Integer[np.ndarray, " n"]

    @functools.cached_property
    def content(self) -> str:
        digest = hashlib.blake2b(np.ascontiguousarray(self.images), digest_size=16)
        digest.update(np.ascontiguousarray(self.labels))
        return digest.hexdigest()

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": int(self.labels[index])}


def check(name: str, path: str) -> None:
    """Raises UsageError, which names the config's field, unless a source is written as one of KINDS; opens nothing."""
    kind, _, rest = name.partition(":")
    if name != "digits" and not (kind in ("numpy", "folder") and rest) and not source.is_one(name):
        raise unknown(path, name, KINDS)


def load(data: Any) -> dict[str, LabelledImages]:
    """Opens the splits of a data set, by the names of `splits.PARTS`; see `open_part` and `splits.opened`.

    Raises:
      UsageError: these raise it, or the classes of a split are not those of the training split.
    """
    names, parts = splits.opened(data, functools.partial(open_part, data))
    training = parts[names["train"].name]
    for part, split in names.items():
        if parts[split.name].class_names != training.class_names:
            parts[split.name] = _renumbered(parts[split.name], training, part)
    return {part: parts[split.name].view(split) for part, split in names.items()}


def open_part(data: Any, part: str) -> LabelledImages:
    """Opens a whole part of a data set.

    Args:
      data: An `ImageData`, whose `source` is `digits` (scikit-learn's; train 1,149, validation 288, test 360),
        `tfds:NAME` (any prepared TFDS image set; read without TensorFlow, prepared on first use if TensorFlow is
        there), `numpy:FILE.npz` with arrays `SPLIT_image` uint8 (n, H, W[, C]) and `SPLIT_label` (n,), integers or
        names; or `folder:DIR`, `file:TABLE` or `hf:NAME`, whose images are made to have one size, once.
      part: A plain name, no slice.

    Raises:
      UsageError: there is no such part, file, array or feature, or something cannot be read as it is.
    """
    kind, _, name = data.source.partition(":")
    if kind == "tfds":
        return _read_tfds(name, part, data)
    if kind == "numpy":
        return _read_numpy(os.path.expanduser(name), part)
    return read_digits(part) if kind == "digits" else _read_pictures(data, part)


@functools.cache
def digits_indices() -> dict[str, Integer[np.ndarray, " n"]]:
    """Returns the indices of scikit-learn's 1,797 digits in each split, the same on every machine.

    Twice `sklearn.model_selection.train_test_split`, stratified by class, with seed 0: 360 for tests, 288 for
    validation. They are kept as a file, because scikit-learn takes longer to import than the digits to read.
    """
    with np.load(Path(__file__).with_name("digits_split.npz")) as split:
        return {name: split[name].astype(np.int64) for name in split}


def read_digits(split: str) -> LabelledImages:
    """Returns scikit-learn's digits of a split; raises UsageError where there is none of the name."""
    check_known("split of digits", split, digits_indices())
    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(package, "datasets", "data", "digits.csv.gz"), np.uint8, delimiter=",")
    *pixels, labels = rows[digits_indices()[split]].T
    images = np.round(np.stack(pixels, -1).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return LabelledArrays(images, labels.astype(np.int64), num_classes=10)


def _read_pictures(data: Any, part: str) -> LabelledImages:
    """Opens images of any kind of file, which are decoded once."""
    image = DataColumn("data.image_key", data.image_key, is_image=True, guessed=data.image_key == IMAGE_KEY)
    label = DataColumn("data.label_key", data.label_key, is_class=True, guessed=data.label_key == LABEL_KEY)
    rows = source.open_split(data, part, [image, label]).rows(_pictures, (image.name, label.name))
    records = store(rows, data.image_shape, cache.root(data.cache_dir))
    names = rows.class_names or classes.ordered(records.class_names)
    records = dataclasses.replace(records, numbers=tuple(map(names.index, records.class_names)))
    return LabelledImages(records, len(names), records.image_shape, range(len(records)), names, shuffled=True)


def _pictures(values: Iterator[tuple[Any, ...]]) -> Iterator[Picture]:
    for where, image, label in values:
        named = f"{where}: {image}" if isinstance(image, str) and image != where else where
        yield Picture(image, label, named)


def _renumbered(images: LabelledImages, training: LabelledImages, part: str) -> LabelledImages:
    """Returns images of a part whose classes have the numbers that they have in the training data."""
    numbers = classes.numbers(images.class_names, training.class_names, part, "data.label_key")
    records = dataclasses.replace(images.records, numbers=tuple(numbers[old] for old in images.records.numbers))
    names = {"num_classes": training.num_classes, "class_names": training.class_names}
    return dataclasses.replace(images, records=records, **names)


def _read_numpy(path: str, split: str) -> LabelledImages:
    arrays = Arrays(Path(path), "data.source names it: write SPLIT_image and SPLIT_label with numpy.savez")
    for key in (f"{split}_image", f"{split}_label"):
        check_known(f"array in {path}:", key, arrays)
    try:
        images, labels = arrays[f"{split}_image"], arrays[f"{split}_label"]
        # A split may lack the highest class, so the classes of all of them count.
        every = [labels, *(arrays[name] for name in arrays if name.endswith("_label"))]
        if {(some.dtype.kind, some.ndim) for some in every} == {("U", 1)}:
            names = classes.ordered(np.concatenate(every).tolist())
            return LabelledArrays(images, np.array([names.index(n) for n in labels.tolist()], int), len(names), names)
        for some in every:
            _check_labels(some)
        return LabelledArrays(images, labels, num_classes=max(int(some.max(initial=0)) for some in every) + 1)
    except UsageError as error:
        raise UsageError(f"Cannot use {split!r} of {path}: {error}") from error


def _check_arrays(images: np.ndarray, labels: np.ndarray) -> None:
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"Images must be uint8 of shape (n, H, W) or (n, H, W, C), but they are {images.dtype} {images.shape}."
        )
    _check_labels(labels)
    if len(images) != len(labels) or not len(labels):
        raise UsageError(f"There must be as many labels as images, and some; got {len(labels)} and {len(images)}.")


def _check_labels(labels: np.ndarray) -> None:
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise UsageError(f"Labels must be integers of shape (n,), but they are {labels.dtype} {labels.shape}.")
    if labels.size and not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
        raise UsageError(
            f"Labels must be at least 0 and below {MOST_CLASSES:,}, but they go from {labels.min()} to {labels.max()}."
        )


@dataclasses.dataclass(frozen=True)
class TfdsRecords:
    """Records of a TFDS data source as `{'image': uint8 (H, W, C), 'label': int}`.

    The images are decoded here, by Pillow: TFDS would use OpenCV where it happens to be installed, whose JPEG
    pixels differ. Those of a small set stay decoded, since this takes seven times as long as making an example of them.

    Attributes:
      content: Name and version of the set.
      encoded: The data source.
      image_key: The feature that holds the image.
      label_key: The feature that holds the label.
      mode: Pillow's mode of the images.
      kept: Decoded records by index.
    """

    content: str
    encoded: Sequence[dict[str, Any]]
    image_key: str
    label_key: str
    mode: str
    kept: dict[int, dict[str, Any]] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if (record := self.kept.get(index)) is None:
            record = self._decoded(index)
            if record["image"].nbytes * len(self.encoded) <= KEPT_BYTES:
                self.kept[index] = record
        return record

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"kept": {}}  # workers keep their own

    def _decoded(self, index: int) -> dict[str, Any]:
        record = self.encoded[index]
        image = Image.open(io.BytesIO(record[self.image_key]))
        pixels = np.asarray(image if image.mode == self.mode else image.convert(self.mode))
        return {"image": pixels.reshape(*pixels.shape[:2], -1), "label": int(record[self.label_key])}


def _read_tfds(name: str, split: str, data: Any) -> LabelledImages:
    """Opens a whole split of a set as TFDS writes it (`cifar100`, `name/config`, `name:1.2.3`)."""
    features, image, label = tfds.package().features, data.image_key, data.label_key
    opened = tfds.open_split(name, split, data.data_dir)
    opened.check_feature("data.image_key", image, features.Image)
    opened.check_feature("data.label_key", label, features.ClassLabel)
    feature = opened.features[image]
    shape = tuple(size or 0 for size in feature.shape)
    if np.dtype(feature.np_dtype) != np.uint8 or shape[2] not in MODES:
        raise UsageError(f"{image!r} of tfds:{name} is {feature}, but images must be uint8 with 1, 3 or 4 channels.")
    encoded = opened.records({image: tfds.package().decode.SkipDecoding()})
    records = TfdsRecords(opened.builder.info.full_name, encoded, image, label, MODES[shape[2]])
    return LabelledImages(records, opened.features[label].num_classes, shape, range(len(encoded)))
