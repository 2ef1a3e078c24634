"""Images opened by name; batches read to the end, or as far as a test looks."""

import dataclasses
import itertools

import numpy as np

from train.data.images import sources
from train.data.images.section import ImageData
from train.data.rows.splits import Split


def take(batches, count):
    taken = list(itertools.islice(batches, count))
    batches.close()
    return taken


def stream(batches, count):
    """`count` batches end to end."""
    taken = take(batches, count)
    return {key: np.concatenate([batch[key] for batch in taken]) for key in taken[0]}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for key in a:
        np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def load(source, split, **fields):
    """Opens a split of labelled images of any sizes."""
    cut = Split.parse(split)
    return sources.open_part(ImageData(source=source, classes=0, image_shape="", **fields), cut.name).view(cut)


def train_batches(examples, data, seed, *share):
    """Training batches of examples with another section."""
    return dataclasses.replace(examples, data=data).train_batches(seed, *share)


def eval_batches(examples, data, *share):
    return dataclasses.replace(examples, data=data).eval_batches(*share)
