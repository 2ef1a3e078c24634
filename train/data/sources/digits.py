"""Scikit-learn's 1,797 scanned digits, as labelled images."""

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Integer, UInt8

from train.data.section import Section
from train.data.sources import numpy
from train.data.sources.rows import DataColumn, Rows
from train.data.splits import named


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens `train` (1,149 digits), `validation` (288) or `test` (360)."""
    images, labels = scans()
    chosen = named(indices(), split, name)
    return numpy.labelled(f"{split} of {name}", images[chosen], labels[chosen])


@functools.cache
def indices() -> dict[str, Integer[np.ndarray, " n"]]:
    """Lists the digits of each split, cut by scikit-learn's `train_test_split` twice, stratified, with seed 0.

    A file keeps them, because importing scikit-learn takes longer than reading the digits.
    """
    with np.load(Path(__file__).with_name("digits_split.npz")) as split:
        return {name: split[name].astype(np.int64) for name in split}


@functools.cache
def scans() -> tuple[UInt8[np.ndarray, "n 8 8"], Integer[np.ndarray, " n"]]:
    """Reads all scans and their digits."""
    (package,) = importlib.util.find_spec("sklearn").submodule_search_locations
    rows = np.loadtxt(Path(package, "datasets", "data", "digits.csv.gz"), np.uint8, delimiter=",")
    *pixels, labels = rows.T
    images = np.round(np.stack(pixels, -1).reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
    return images, labels.astype(np.int64)
