"""Images of one size on disk, made once of encoded ones and mapped into memory: a folder for each part and size."""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from jaxtyping import Int32, UInt8
from PIL import Image, ImageOps

from attention.errors import UsageError, listed
from train.data.rows.rows import Picture, Rows, brief, digest
from train.data.store import blocks
from train.data.store.blocks import CheckedArray
from train.data.store.cache import make_once
from train.data.store.tokens import ABOUT, StoredRows, progress

MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # of Pillow, by the number of channels
_FORMAT = 1  # the version of the folders; with another number they are made again
_TOGETHER = 256  # images that are decoded at a time, by several threads, which bounds memory
_NAMED = 5  # images that an error names
_GREY = ("1", "L", "LA")

Shape = tuple[int, int, int]
_Pixels = UInt8[np.ndarray, "h w c"]


@dataclasses.dataclass(frozen=True)
class StoredImages(StoredRows):
    """Records of images on disk, as `{'image': uint8 (H, W, C), 'label': int}`.

    Attributes:
      numbers: The number of each of its classes; () is their order.
    """

    numbers: tuple[int, ...] = ()

    def __getitem__(self, index: int) -> dict[str, Any]:
        label = int(self._labels[index])
        return {"image": self._pixels[index], "label": self.numbers[label] if self.numbers else label}

    def __len__(self) -> int:
        return self.about["shape"][0]

    @property
    def image_shape(self) -> Shape:
        """(H, W, C) of every image."""
        return tuple(self.about["shape"][1:])

    @functools.cached_property
    def _pixels(self) -> CheckedArray:
        return blocks.mapped(Path(self.folder), "pixels", np.uint8, tuple(self.about["shape"]))

    @functools.cached_property
    def _labels(self) -> Int32[np.ndarray, " n"]:
        return blocks.mapped(Path(self.folder), "labels", np.int32)[:]


def store(pictures: Rows, shape: str, cache_dir: Path) -> StoredImages:
    """Returns images of one size, from the cache or made now.

    Args:
      pictures: The encoded images: rows that are `Picture`.
      shape: The size, such as `64x64x3`, that images are made to have: turned as a camera says, in grey, RGB or RGBA,
        scaled so that they cover it, and cropped in the middle. '' is the size that all of them have.
      cache_dir: The root of all caches.

    Raises:
      UsageError: images cannot be read, or differ in size where none is given; or the cache cannot be written.
    """
    key = digest([_FORMAT, PIL.__version__, pictures.content, *pictures.class_names, shape])
    folder = cache_dir / "images" / key
    make_once(folder, lambda partial: _write(partial, pictures, shape))
    return StoredImages(str(folder))


def _write(folder: Path, pictures: Rows, shape: str) -> None:
    folder.mkdir()
    size = tuple(map(int, shape.split("x"))) if shape else None
    classes = {name: number for number, name in enumerate(pictures.class_names)}
    content, count = hashlib.blake2b(digest_size=16), 0
    with contextlib.ExitStack() as opened:
        pixels, labels = (opened.enter_context(open(folder / name, "wb")) for name in ("pixels", "labels"))
        for picture, image in _of_one_size(pictures, size):
            size, count = size or image.shape, count + 1
            label = np.int32(classes.setdefault(picture.label, len(classes)))
            for file, array in ((pixels, image), (labels, label)):
                file.write(array.tobytes())
                content.update(array.tobytes())
    if not count:
        raise UsageError(f"There is no image in {pictures.name}; give a source that has some.")
    identity = digest([content.hexdigest(), *classes])
    about = {"name": pictures.name, "shape": [count, *size], "class_names": list(classes), "content": identity}
    (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")


def _of_one_size(pictures: Rows, size: Shape | None) -> Iterator[tuple[Picture, _Pixels]]:
    """Yields images; raises UsageError, at the end, for those that cannot be read, or at once for another size."""
    first, failures = None, []
    for picture, decoded in _decoded(pictures, size):
        if isinstance(decoded, str):
            failures.append(f"{picture.where} ({decoded})")
            continue
        here = picture.where, decoded.shape
        first = first or here
        if decoded.shape != first[1]:
            one, other = (f"{where} is {'x'.join(map(str, shape))}" for where, shape in (first, here))
            raise UsageError(
                f"The images differ in size: {one} and {other}; set data.image_shape to the size that they shall have, "
                "such as 64x64x3."
            )
        if not failures:
            yield picture, decoded
    if failures:
        raise UsageError(
            f"Of {pictures.name}, {len(failures)} of the images cannot be read: {listed(failures, _NAMED)}; mend or "
            "remove them."
        )


def _decoded(pictures: Rows, size: Shape | None) -> Iterator[tuple[Picture, _Pixels | str]]:
    rows = progress(pictures.read(), f"Decoding {pictures.name}")
    with ThreadPoolExecutor() as threads:
        while batch := list(itertools.islice(rows, _TOGETHER)):
            yield from zip(batch, threads.map(functools.partial(_decode, size=size), batch), strict=True)


def read(path: Path, shape: Shape) -> _Pixels:
    """Returns an image, made to have a shape as `store` does it; raises UsageError where it cannot be read."""
    decoded = _decode(Picture(str(path), "", str(path)), shape)
    if isinstance(decoded, str):
        raise UsageError(f"The image {str(path)!r} cannot be read ({decoded}); give another file.")
    return decoded


def _decode(picture: Picture, size: Shape | None) -> _Pixels | str:
    """Returns an image, or why it cannot be read."""
    encoded = picture.image
    try:
        with Image.open(io.BytesIO(encoded) if isinstance(encoded, bytes) else encoded) as image:
            if size:  # a JPEG is then decoded at a fraction of its size, at least twice what is wanted
                image.draft(None, (2 * max(size[:2]), 2 * max(size[:2])))
            return _converted(image, size)
    except PIL.UnidentifiedImageError:
        return "no kind of image"
    except Exception as error:  # what broken files make Pillow raise has no common base
        return brief(error)


def _converted(image: Image.Image, size: Shape | None) -> _Pixels:
    if image.mode.startswith("I;16"):  # which Pillow would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"its pixels are numbers of 32 bits (mode {image.mode})")
    image = ImageOps.exif_transpose(image)
    channels = size[2] if size else 1 if image.mode in _GREY else 3
    image = image.convert(MODES[channels])
    if size and image.size != (size[1], size[0]):
        image = ImageOps.fit(image, (size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, channels)
