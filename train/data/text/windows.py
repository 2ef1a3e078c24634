"""Windows of tokens: where they start and end, and how they are cut from a text."""

import dataclasses

import jax
import numpy as np
from jaxtyping import Int32, Int64, Integer

from train.data import draws
from train.data.draws import Draws, Word
from train.data.pipeline import Material, Raw, Recipe

Ids = Integer[np.ndarray, " tokens"]
Starts = Int64[np.ndarray, " windows"]


@dataclasses.dataclass(frozen=True)
class Passages(Material):
    """Passages of `width` tokens of a text, from the recipe's token `NAME_start` on; after its end come zeros.

    What comes after a recipe's `NAME_length` belongs to others.
    """

    name: str
    ids: Ids
    width: int

    def read(self, recipe: Recipe) -> Raw:
        """Cuts a passage; see `Material`."""
        return {self.name: cut(self.ids, recipe[f"{self.name}_start"], self.width)}

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Describes all ids, and as many zeros after them as are cut out; see `Material`."""
        return {self.name: jax.ShapeDtypeStruct((len(self.ids) + self.width,), self.ids.dtype)}

    def held(self) -> dict[str, np.ndarray]:
        """Reads all ids; see `Material`."""
        return {self.name: np.pad(self.ids[:], (0, self.width))}

    def gather(self, held: dict[str, jax.Array], recipe: Recipe) -> Raw:
        """Cuts a passage on a device; see `Material`."""
        start = recipe[f"{self.name}_start"]
        return {self.name: jax.lax.dynamic_slice_in_dim(held[self.name], start, self.width).astype(np.int32)}


def per_epoch(tokens: int, width: int) -> int:
    """Counts the windows of an epoch that `shifted` cuts, at least 1."""
    return max(1, (tokens - width + 1) // width)


def shifted(tokens: int, width: int, seed: int, epoch: int) -> Starts:
    """Finds where adjacent windows of `width` tokens start, which are cut at different places every epoch.

    So an epoch shows every token once, but for less than two windows at the ends, and windows differ between epochs.
    """
    count = per_epoch(tokens, width)
    return np.arange(count) * width + Draws(draws.CUTS, seed, epoch).integer(tokens - count * width + 1)


def strides(tokens: int, width: int, stride: int) -> tuple[Starts, Starts, Starts]:
    """Lays windows of `width` tokens over all of a text, each `stride` after the one before; the last may be cut short.

    Returns:
      The first token of each window, how many it has, and how many at its beginning an earlier window shows.
    """
    starts = np.arange(max(0, -(-(tokens - width) // stride)) + 1) * stride
    return starts, np.minimum(tokens - starts, width), np.where(starts > 0, width - stride, 0)


def cut(ids: Ids, start: int, width: int) -> Int32[np.ndarray, " width"]:
    """Cuts `width` tokens out of a text; after its end come zeros."""
    out = np.zeros(width, np.int32)
    there = ids[start : start + width]
    out[: len(there)] = there
    return out


def padded(ids: Int32[np.ndarray, " width"], length: Word, pad: int) -> Int32[np.ndarray, " width"]:
    """Replaces what comes after the first `length` ids by `pad`, on the host or on a device."""
    return draws.namespace(ids).where(np.arange(len(ids)) < length, ids, np.int32(pad))
