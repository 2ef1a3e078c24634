"""Arrays of images and labels in a file, `numpy:FILE.npz`."""

from collections.abc import Sequence

import numpy as np

from attention.errors import UsageError, check_known
from models.files import Arrays, at_home
from train.data import splits
from train.data.section import Section
from train.data.sources.rows import DataColumn, Rows, in_memory

MOST_CLASSES = 2**24


def open_split(path: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens the arrays `SPLIT_image`, uint8 (n, H, W[, C]), and `SPLIT_label` (n,), integers or names."""
    arrays = Arrays(at_home(path), "data.source names it: write SPLIT_image and SPLIT_label with numpy.savez")
    for key in (f"{split}_image", f"{split}_label"):
        check_known(f"array in {path}:", key, arrays)
    try:
        images, labels, names = arrays[f"{split}_image"], arrays[f"{split}_label"], ()
        every = [arrays[name] for name in arrays if name.endswith("_label")]
        if {(some.dtype.kind, some.ndim) for some in every} == {("U", 1)}:
            names = splits.ordered_classes(np.concatenate(every).tolist())
            labels = np.array([names.index(label) for label in labels.tolist()], int)
        return labelled(f"{split} of numpy:{path}", images, labels, names)
    except UsageError as error:
        raise UsageError(f"Cannot use {split!r} of {path}: {error}") from error


def labelled(name: str, images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...] = ()) -> Rows:
    """Makes rows of images, uint8 (n, H, W[, C]), and labels from 0, (n,); raises UsageError for other arrays."""
    if images.dtype != np.uint8 or images.ndim not in (3, 4):
        raise UsageError(
            f"Images must be uint8 of shape (n, H, W) or (n, H, W, C), but they are {images.dtype} {images.shape}."
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.ndim != 1:
        raise UsageError(f"Labels must be integers of shape (n,), but they are {labels.dtype} {labels.shape}.")
    if len(images) != len(labels) or not len(labels):
        raise UsageError(f"There must be as many labels as images, and some; got {len(labels)} and {len(images)}.")
    if not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
        raise UsageError(
            f"Labels must be at least 0 and below {MOST_CLASSES:,}, but they go from {labels.min()} to {labels.max()}."
        )
    images = images[..., None] if images.ndim == 3 else images
    return in_memory(name, {"image": images, "label": labels}, class_names)
