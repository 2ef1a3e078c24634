"""Images of scanned digits in a row with their English words, which any machine can make from scikit-learn's scans."""

import functools
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from train.data.section import Section
from train.data.sources import digits
from train.data.sources.rows import DataColumn, Rows, in_memory
from train.data.splits import PARTS, named

COUNTS = {"train": 10_000, "validation": 1_000, "test": 2_000}  # images of each part
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST = 4  # digits of an image
SIDE = 8  # pixels of a scan
SHAPE = (16, 40, 1)


def open_split(name: str, split: str, columns: Sequence[DataColumn], data: Section) -> Rows:
    """Opens the images of `train`, `validation` or `test` with their words."""
    named(COUNTS, split, name)
    images, captions = captioned(split)
    return in_memory(f"{split} of {name}", {"image": images, "target": np.array(captions)})


@functools.cache
def captioned(split: str) -> tuple[UInt8[np.ndarray, "n 16 40 1"], list[str]]:
    """Makes images of one to four digits side by side, and their words.

    The image's number determines how many digits there are, their scans, gaps and heights, so every machine makes the
    same images. No two splits share a scan.
    """
    scans, labels = (array[digits.indices()[split]] for array in digits.scans())
    images, captions = np.zeros((COUNTS[split], *SHAPE), np.uint8), []
    for index, image in enumerate(images):
        chosen, lefts, tops = _drawn(split, index, len(scans))
        for scan, left, top in zip(chosen, lefts, tops, strict=True):
            image[top : top + SIDE, left : left + SIDE, 0] = scans[scan]
        captions.append(" ".join(WORDS[labels[scan]] for scan in chosen))
    return images, captions


def _drawn(split: str, index: int, scans: int) -> tuple[list[int], list[int], list[int]]:
    """Draws the scans of an image, with their left and upper edges."""
    seed = np.random.SeedSequence([PARTS.index(split), index])
    draws = iter(np.random.PCG64(seed).random_raw(1 + 3 * MOST).tolist())
    count = 1 + next(draws) % MOST
    free = SHAPE[1] - SIDE * count  # columns to share among the gaps before digits
    before = sorted(next(draws) % (free + 1) for _ in range(count))
    lefts = [SIDE * place + gap for place, gap in enumerate(before)]
    tops = [next(draws) % (SHAPE[0] - SIDE + 1) for _ in range(count)]
    return [next(draws) % scans for _ in range(count)], lefts, tops
