"""Rows of scanned digits with their English words, from scikit-learn's scans, so that any machine can make them."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from train.data.images import sources
from train.data.rows.rows import digest
from train.data.rows.splits import PARTS

COUNTS = {"train": 10_000, "validation": 1_000, "test": 2_000}  # images of each part
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
MOST = 4  # digits of an image
SIDE = 8  # pixels of a scan
SHAPE = (16, 40, 1)
_scans = functools.cache(sources.read_digits)


@dataclasses.dataclass(frozen=True)
class CaptionedDigits(Sequence):
    """Images of one to four digits side by side, as `{'image': uint8 (16, 40, 1)}`, and their words.

    The number of digits, the scans, the gaps between them and their heights are drawn from the image's number, so
    every machine makes the same images. The scans of one part are in no other part.

    Attributes:
      part: `train`, `validation` or `test`.
    """

    part: str

    def __len__(self) -> int:
        return COUNTS[self.part]

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index not in range(len(self)):
            raise IndexError(index)
        scans, gaps, heights = self._drawn(index)
        image = np.zeros(SHAPE, np.uint8)
        for scan, left, top in zip(scans, gaps, heights, strict=True):
            image[top : top + SIDE, left : left + SIDE] = _scans(self.part)[scan]["image"]
        return {"image": image}

    @property
    def content(self) -> str:
        """A digest of the scans and of how images are made of them."""
        return digest(["caption_digits", _scans(self.part).content, self.part, len(self), MOST, *SHAPE])

    def captions(self) -> Iterator[str]:
        """Yields the words of each image."""
        for index in range(len(self)):
            yield " ".join(WORDS[_scans(self.part)[scan]["label"]] for scan in self._drawn(index)[0])

    def _drawn(self, index: int) -> tuple[list[int], list[int], list[int]]:
        """Returns the scans of an image, and the left and the upper edge of each."""
        seed = np.random.SeedSequence([PARTS.index(self.part), index])
        draws = iter(np.random.PCG64(seed).random_raw(1 + 3 * MOST).tolist())
        count = 1 + next(draws) % MOST
        free = SHAPE[1] - SIDE * count  # columns, some of them before each digit
        before = sorted(next(draws) % (free + 1) for _ in range(count))
        lefts = [SIDE * place + gap for place, gap in enumerate(before)]
        tops = [next(draws) % (SHAPE[0] - SIDE + 1) for _ in range(count)]
        return [next(draws) % len(_scans(self.part)) for _ in range(count)], lefts, tops
