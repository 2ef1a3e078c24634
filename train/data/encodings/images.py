"""Labelled images as arrays: in memory, on disk in one size once decoded, or decoded each time."""

import contextlib
import dataclasses
import functools
import io
import itertools
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from jaxtyping import Integer, UInt8
from PIL import Image, ImageOps

from attention.errors import UsageError, brief, listed
from train.data import sources, splits
from train.data.encodings import cache
from train.data.encodings.cache import Array, Chunk
from train.data.section import Section, sides
from train.data.sources.rows import IMAGE_FORMATS, Row, Rows, digest
from train.data.splits import Split

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # Pillow's, by the number of channels
_FORMAT = 2  # the version of the folders; another number makes them again
KEPT_BYTES = 2**31  # the most pixels of a prepared set to keep decoded, in bytes; a larger set is decoded each time
_TOGETHER = 256  # images to decode at a time, by several threads: this bounds memory
_NAMED = 5  # how many images an error names
_GREY = ("1", "L", "LA")
_NO_SPLIT = Split("", "")

Shape = tuple[int, int, int]
Record = dict[str, Any]
_Pixels = UInt8[np.ndarray, "h w c"]


@dataclasses.dataclass(frozen=True)
class StoredImages:
    """Images of one size, uint8 (n, H, W, C), with labels."""

    images: Array
    labels: Integer[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Record:
        return {"image": self.images[index], "label": int(self.labels[index])}


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Images that are decoded each time, with labels that number their class names."""

    rows: Sequence[Row]
    channels: int
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        row = self.rows[index]
        with _opened(row["image"]) as image:
            pixels = np.asarray(image.convert(MODES[self.channels]))
        return {"image": pixels.reshape(*pixels.shape[:2], -1), "label": self.class_names.index(row["label"])}


@dataclasses.dataclass(frozen=True)
class LabelledImages(Sequence):
    """A split as a random-access sequence of `{'image': uint8 (H, W, C), 'label': int}`."""

    records: Sequence[Record]  # all examples of the part; `content` is their digest
    num_classes: int
    image_shape: Shape  # of every image; 0 if it differs from image to image
    places: Sequence[int]  # of the split's examples in the records
    content: str = ""
    class_names: tuple[str, ...] = ()  # by number; () if the source names none
    split: Split = _NO_SPLIT

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Record:
        return self.records[int(self.places[index])]

    @property
    def labels(self) -> Integer[np.ndarray, " n"] | None:
        """The labels of all examples; None if only decoding gives them."""
        return self.records.labels[np.asarray(self.places)] if isinstance(self.records, StoredImages) else None

    def view(self, split: Split, is_shuffled: bool = False) -> "LabelledImages":
        """Slices these images, a whole part, in order or in a fixed random order."""
        sliced = is_shuffled and not split.is_whole
        places = splits.shuffled(split, len(self)) if sliced else range(*split.bounds(len(self)))
        return dataclasses.replace(self, places=places, split=split)


def load(data: Section) -> dict[str, LabelledImages]:
    """Opens the splits that an `ImageData` names; raises UsageError if one has classes that training lacks."""
    names, rows = splits.opened(data, lambda part: sources.open_split(data, part))
    images, root = {}, cache.root(data.cache_dir)
    for part, split in names.items():
        trained = images["train"].class_names if images else ()
        whole = encode(rows[split.name], data.image_shape, root, trained, part)
        images[part] = whole.view(split, is_shuffled=not sources.is_prepared(data.source))
    count = max(part.num_classes for part in images.values())  # a part may lack the last class
    return {part: dataclasses.replace(split, num_classes=count) for part, split in images.items()}


def encode(rows: Rows, shape: str, cache_dir: Path, trained: tuple[str, ...] = (), part: str = "") -> LabelledImages:
    """Makes arrays of images. Those in memory stay as they are; encoded ones are decoded once and kept.

    Images of a source with random access are decoded each time instead if they differ in size or take too much room.
    Others are brought to a shape, such as `64x64x3`, unless the source says theirs: turned as the camera says, in grey,
    RGB or RGBA, scaled to cover it, and cropped to its middle. '' is the size that all of them must have in common.
    Classes must be among the `trained` ones if there are any.
    """
    names, content, size, count = rows.class_names, rows.content, rows.image_shape, len(rows.class_names)
    if rows.arrays:
        images = rows.arrays["image"]
        labels = rows.arrays.get("label", np.zeros(len(images), np.int64))
        records, size, count = StoredImages(images, labels), images.shape[1:], count or int(labels.max()) + 1
    elif rows.records and not 0 < len(rows.records) * math.prod(size) <= KEPT_BYTES:
        records = Encoded(rows.records, size[2], names)
    else:
        shape = sides(size) or shape
        folder = cache_dir / "images" / digest([_FORMAT, PIL.__version__, content, *names, shape])
        arrays, content, stored = cache.arrays(folder, functools.partial(_pixels, rows, shape), names)
        names = trained or names or splits.ordered_classes(stored)
        numbers = np.array(splits.class_numbers(stored, names, part, "data.label_key"), np.int32)
        records = StoredImages(arrays["images"], numbers[arrays["labels"][:]])
        size, count = arrays["images"].shape[1:], len(names)
    return LabelledImages(records, count, size, range(len(records)), content, names)


def _pixels(rows: Rows, shape: str, numbers: dict[str, int]) -> Iterator[Chunk]:
    """Yields images of one size; raises UsageError at once for another, and at the end for all that cannot be read."""
    size = tuple(map(int, shape.split("x"))) if shape else None
    first, failures = (), []
    for row, decoded in _decoded(rows, size):
        if isinstance(decoded, str):
            failures.append(f"{_place(row)} ({decoded})")
            continue
        first = first or (row, decoded.shape)
        if decoded.shape != first[1]:
            one, other = (f"{_place(row)} is {sides(shape)}" for row, shape in (first, (row, decoded.shape)))
            raise UsageError(
                f"The images differ in size: {one} and {other}; set data.image_shape to the size wanted, "
                "such as 64x64x3, and the side of a patch to suit it, such as model.patch=8, which makes 64 tokens."
            )
        if not failures:
            label = numbers.setdefault(row.get("label", ""), len(numbers))
            yield {"images": decoded[None], "labels": np.array([label], np.int32)}
    if not first and not failures:
        raise UsageError(f"There is no image in {rows.name}; give a source that has some.")
    if failures:
        raise UsageError(
            f"Of {rows.name}, {len(failures)} of the images cannot be read: {listed(failures, _NAMED)}; fix or "
            "remove them."
        )


def _place(row: Row) -> str:
    where, image = row["where"], row["image"]
    return f"{where}: {image}" if isinstance(image, str) and image != where else where


def _decoded(rows: Rows, size: Shape | None) -> Iterator[tuple[Row, _Pixels | str]]:
    source = iter(cache.progress(rows.read(), f"Decoding {rows.name}"))
    with ThreadPoolExecutor() as threads:
        while batch := list(itertools.islice(source, _TOGETHER)):
            decoded = threads.map(functools.partial(_decode, size=size), (row["image"] for row in batch))
            yield from zip(batch, decoded, strict=True)


def read(path: Path, shape: Shape) -> _Pixels:
    """Reads an image and brings it to a shape, as `encode` does; raises UsageError if it cannot be read."""
    decoded = _decode(str(path), shape)
    if isinstance(decoded, str):
        raise UsageError(f"The image {str(path)!r} cannot be read ({decoded}); give another file.")
    return decoded


def _decode(encoded: str | bytes, size: Shape | None) -> _Pixels | str:
    """Decodes an image, or says why it cannot be read."""
    try:
        with _opened(encoded) as image:
            if size:  # decodes a JPEG at a fraction of its size, at least twice what is wanted
                image.draft(None, (2 * max(size[:2]), 2 * max(size[:2])))
            return _converted(image, size)
    except PIL.UnidentifiedImageError:
        return "not an image"
    except Exception as error:  # what Pillow raises for broken files has no common base
        return brief(error)


def _opened(encoded: str | bytes) -> contextlib.AbstractContextManager[Image.Image]:
    return Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded, formats=IMAGE_FORMATS)


def _converted(image: Image.Image, size: Shape | None) -> _Pixels:
    if image.mode.startswith("I;16"):  # Pillow would clip it at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers of 32 bits (mode {image.mode})")
    image = ImageOps.exif_transpose(image)
    channels = size[2] if size else 1 if image.mode in _GREY else 3
    image = image.convert(MODES[channels])
    if size and image.size != (size[1], size[0]):
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)
