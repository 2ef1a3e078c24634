"""Images with captions by name: `caption_digits`, `file:TABLE` or `hf:NAME`."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from attention.errors import UsageError, check_known, unknown
from train.data.captions.digits import CaptionedDigits
from train.data.images.sources import IMAGE_KEY
from train.data.images.stored import store
from train.data.rows import source
from train.data.rows.rows import DataColumn, Picture, Rows, digest
from train.data.rows.splits import PARTS
from train.data.store import cache

KINDS = ("caption_digits", "file:TABLE", "hf:NAME", "hf:NAME:CONFIG")
FIELDS = ("data.image_key", "data.target_column")


class Caption(NamedTuple):
    """A caption, its image (a path, bytes or a name), and its place, for messages."""

    image: str | bytes
    target: str
    where: str


@dataclasses.dataclass(frozen=True)
class CaptionRows(Rows):
    """One part of a source of captions.

    Attributes:
      images: The image of each row, as `{'image': uint8 (H, W, C)}`.
      image_shape: (H, W, C) of every image.
    """

    images: Sequence[dict[str, Any]] = ()
    image_shape: tuple[int, int, int] = (0, 0, 0)


def check(name: str, path: str = "data.source") -> None:
    """Raises UsageError unless the source is written as one of KINDS; opens nothing."""
    if name != "caption_digits" and not (source.is_one(name) and not name.startswith("tfds:")):
        raise unknown(path, name, KINDS)


def load(data: Any, part: str) -> CaptionRows:
    """Opens one part of a source.

    Args:
      data: A `CaptionData`. A table has a row for each caption, with its image in `image_key`.
      part: A plain name, no slice.

    Raises:
      UsageError: there is no such source, part, file or column; or something cannot be read as it is.
    """
    if data.source == "caption_digits":
        return _digits(part)
    names = (data.image_key, data.target_column)
    if "" in names or names[0] == names[1]:
        raise UsageError(f"{' and '.join(FIELDS)} must name two columns, but they are {names}.")
    image = DataColumn(FIELDS[0], data.image_key, is_image=True, guessed=data.image_key == IMAGE_KEY)
    text = DataColumn(FIELDS[1], data.target_column)
    rows = source.open_split(data, part, [image, text]).rows(_captions, names)
    pictures = Rows(rows.name, digest([rows.content, "images"]), functools.partial(_pictures, rows))
    images = store(pictures, data.image_shape, cache.root(data.cache_dir))
    return CaptionRows(rows.name, digest([rows.content, images.content]), rows.read, (), images, images.image_shape)


def _digits(part: str) -> CaptionRows:
    check_known("split of caption_digits", part, PARTS)
    images = CaptionedDigits(part)
    read = functools.partial(_of_digits, images)
    return CaptionRows(f"{part} of caption_digits", images.content, read, (), images, images[0]["image"].shape)


def _of_digits(images: CaptionedDigits) -> Iterator[Caption]:
    for index, text in enumerate(images.captions()):
        yield Caption(str(index), text, f"image {index}")


def _captions(values: Iterator[tuple[Any, ...]]) -> Iterator[Caption]:
    for where, image, text in values:
        if not (text := text.strip()):
            raise UsageError(f"{where} has an empty caption; mend or remove the row.")
        yield Caption(image, text, where)


def _pictures(captions: Rows) -> Iterator[Picture]:
    return (Picture(caption.image, "", caption.where) for caption in captions.read())


def key_of(caption: Caption) -> bytes:
    """Returns what all captions of one image share, so that slices keep them together."""
    return caption.image if isinstance(caption.image, bytes) else caption.image.encode("utf-8", "surrogateescape")
