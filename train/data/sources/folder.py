"""Folders of images, `folder:DIR`: a subfolder for each class, perhaps inside one for each split."""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention.errors import UsageError, printable
from models.files import at_home
from train.data.section import Section
from train.data.sources import lines
from train.data.sources.rows import IMAGE_FORMATS, DataColumn, Placed, Rows, picked
from train.data.splits import ALIASES, PARTS, named

_SPLITS = {*PARTS, *ALIASES, "training", "testing"}
_LAYOUT = "DIR/train/CLASS/*.jpg (and validation, test), or DIR/CLASS/*.jpg"


def open_split(path: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens the images of one split, in the order of their classes and names.

    If the folder has a folder `train` with folders in it, its folders are splits (`valid`, `val` and `dev` are
    `validation`); else everything is `train`. The folders in a split are the classes; images may lie deeper. Hidden
    files and folders are skipped; any other file whose name is not an image's is an error.
    """
    place = at_home(path)
    if not place.is_dir():
        raise UsageError(f"There is no folder {path!r}; data.source names it: give a folder such as {_LAYOUT}.")
    try:
        inside = named(_splits(place), split, f"folder:{path}")
        rows = list(_rows(inside, columns))
    except OSError as error:
        raise UsageError(f"{error.filename!r} cannot be read ({error.strerror}); fix that, or move it.") from error
    if not rows:
        raise UsageError(f"There is no image in a folder in {str(inside)!r}; put them in as {_LAYOUT}.")
    names = [printable(where.removeprefix(str(inside))) for where, _ in rows]
    stamps = [lines.stamp(where, "The folder") for where, _ in rows]
    return picked(f"{split} of folder:{path}", columns, [*names, *stamps], functools.partial(iter, rows))


def _splits(place: Path) -> dict[str, Path]:
    if not _folders(place / "train"):
        names = {folder.name.lower() for folder in _folders(place)}
        if names and names <= _SPLITS:
            raise UsageError(f"The folders in {str(place)!r} are splits, not classes; lay it out as {_LAYOUT}.")
        return {"train": place}
    named = {ALIASES.get(folder.name, folder.name): folder for folder in _folders(place)}
    return {name: folder for name, folder in named.items() if name in PARTS}


def _folders(place: Path) -> list[Path]:
    return sorted(inner for inner in place.iterdir() if inner.is_dir() and _shown(inner)) if place.is_dir() else []


def _rows(place: Path, columns: Sequence[DataColumn]) -> Iterator[Placed]:
    from PIL import Image

    suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in IMAGE_FORMATS}
    image, label = (column.name for column in columns)
    for folder in _folders(place):
        for file in sorted(folder.rglob("*")):
            if not file.is_dir() and all(map(_shown, [file, *file.relative_to(folder).parents])):
                if file.suffix.lower() not in suffixes:
                    raise UsageError(
                        f"{str(file)!r} is not named as an image; move it elsewhere, or convert it to PNG or JPEG."
                    )
                if printable(folder.name) != folder.name:
                    raise UsageError(
                        f"The folder {folder.name!r} has a name that is not in UTF-8, but it names a class; rename it."
                    )
                yield str(file), {image: str(file), label: folder.name}


def _shown(path: Path) -> bool:
    return not re.match(r"\.\w|__MACOSX|Thumbs\.db|desktop\.ini", path.name)
