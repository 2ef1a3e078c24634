"""Opens sources by name, and reads batches as far as a test looks."""

import itertools
from types import SimpleNamespace

import jax
import numpy as np

from train.data import sources
from train.data.encodings import cache, images
from train.data.encodings.corpus import stripped
from train.data.images.section import ImageData
from train.data.sources import numpy
from train.data.splits import Split

FIELDS = {"text": "text_column", "source": "source_column", "target": "target_column"}
FIELDS |= {"label": "label_column", "image": "image_key"}


def opened(source, split="train", /, data_dir="", revision="", streaming=False, **columns):
    """Opens the rows of a split, with columns by role."""
    data = SimpleNamespace(source=str(source), data_dir=str(data_dir), revision=revision, streaming=streaming)
    data.COLUMNS = {role: FIELDS[role] for role in columns}
    vars(data).update({FIELDS[role]: name for role, name in columns.items()})
    return sources.open_split(data, split)


def read(source, split="train", /, **fields):
    """Reads the values of the columns, row by row, as a corpus does: pairs without white space and empty ones."""
    roles = [name for name in fields if name in FIELDS]
    values = [tuple(row[role] for role in roles) for row in stripped(opened(source, split, **fields)).read()]
    return [value for (value,) in values] if len(roles) == 1 else values


def load(source, split, **fields):
    """Opens a split of labelled images of any size."""
    cut = Split.parse(split)
    data = ImageData(source=source, classes=0, **{"image_shape": "", **fields})
    return images.encode(sources.open_split(data, cut.name), data.image_shape, cache.root("")).view(cut)


def labelled(pixels, labels):
    """Makes labelled images in memory."""
    return images.encode(numpy.labelled("images", pixels, np.asarray(labels)), "", cache.root(""))


def take(batches, count):
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def joined(*trees):
    """Concatenates the arrays of trees, such as the batches of several steps or the shares of several processes."""
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *trees)


def stream(batches, count):
    return joined(*take(batches, count))
