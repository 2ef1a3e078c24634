"""Examples of text for three tasks: the next token, masked tokens, and the class of a document."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import jax
import numpy as np
from jaxtyping import Bool, Int32, Int64, Integer

from attention.errors import UsageError
from train.data import draws
from train.data.draws import Draws, Word, threshold
from train.data.pipeline import Example, Examples, Material, Raw, Recipe, Recipes
from train.data.tokenisers import Tokeniser

_MASKED, _RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest stay as they are

Ids = Integer[np.ndarray, " tokens"]
Starts = Int64[np.ndarray, " windows"]


@dataclasses.dataclass(frozen=True)
class Passages(Material):
    """Passages of `width` tokens, from the recipe's `NAME_start` on; zeros follow the end of the text.

    Tokens beyond the recipe's `NAME_length` belong to other documents.
    """

    name: str
    ids: Ids
    width: int

    def read(self, recipe: Recipe) -> Raw:
        return {self.name: cut(self.ids, recipe[f"{self.name}_start"], self.width)}

    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        return {self.name: jax.ShapeDtypeStruct((len(self.ids) + self.width,), self.ids.dtype)}

    def held(self) -> dict[str, np.ndarray]:
        return {self.name: np.pad(self.ids[:], (0, self.width))}

    def gather(self, held: dict[str, jax.Array], recipe: Recipe) -> Raw:
        start = recipe[f"{self.name}_start"]
        return {self.name: jax.lax.dynamic_slice_in_dim(held[self.name], start, self.width).astype(np.int32)}


def per_epoch(tokens: int, width: int) -> int:
    """Counts the windows that `shifted` cuts each epoch, at least 1."""
    return max(1, (tokens - width + 1) // width)


def shifted(tokens: int, width: int, seed: int, epoch: int) -> Starts:
    """Finds where adjacent windows of `width` tokens start, in places that differ from epoch to epoch.

    An epoch shows every token once, except for fewer than two windows' tokens at the ends.
    """
    count = per_epoch(tokens, width)
    return np.arange(count) * width + Draws(draws.CUTS, seed, epoch).integer(tokens - count * width + 1)


def strides(tokens: int, width: int, stride: int) -> tuple[Starts, Starts, Starts]:
    """Covers a text with windows of `width` tokens, each `stride` after the one before; the last may be shorter.

    Gives each window's start, its length, and how many of its first tokens an earlier window shows.
    """
    starts = np.arange(max(0, -(-(tokens - width) // stride)) + 1) * stride
    return starts, np.minimum(tokens - starts, width), np.where(starts > 0, width - stride, 0)


def cut(ids: Ids, start: int, width: int) -> Int32[np.ndarray, " width"]:
    """Cuts `width` tokens out of a text; zeros follow its end."""
    out = np.zeros(width, np.int32)
    there = ids[start : start + width]
    out[: len(there)] = there
    return out


def padded(ids: Int32[np.ndarray, " width"], length: Word, pad: int) -> Int32[np.ndarray, " width"]:
    """Replaces all but the first `length` ids by `pad`, on the host or on a device."""
    return draws.namespace(ids).where(np.arange(len(ids)) < length, ids, np.int32(pad))


@dataclasses.dataclass(frozen=True)
class TextExamples(Examples):
    """The base of examples cut from the columns of a `TokenisedSplit`, each with its tokeniser."""

    tokenisers: Mapping[str, Tokeniser]

    def materials(self, training: bool) -> list[Material]:
        return [Passages(name, column.ids, self.data.limits[name]) for name, column in self.split.columns.items()]

    @property
    def _special(self) -> Mapping[str, int]:
        return self.tokenisers["text"].special

    @property
    def _pad(self) -> int:
        return self._special.get("pad", 0)  # any id will do, since padding has weight 0


class _Windows(TextExamples):
    """The base of windows of a text, adjacent in training; in evaluation they may overlap."""

    ahead: ClassVar[int] = 0  # tokens needed after a window

    def __len__(self) -> int:
        return per_epoch(self._tokens, self._width)

    @property
    def eval_length(self) -> int:
        return len(self._strides["index"])

    @property
    def _width(self) -> int:
        return self.data.context

    @property
    def _stride(self) -> int:
        return self._width

    def materials(self, training: bool) -> list[Material]:
        return [Passages("text", self.split.ids, self._width + self.ahead)]

    def epoch(self, seed: int, number: int) -> Recipes:
        order = draws.permutation(len(self), draws.ORDER, seed, number)
        starts = shifted(self._tokens, self._width, seed, number)[order]
        return {"index": starts, "text_start": starts}

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        """Describes windows of evaluation, and how many of their tokens earlier windows show."""
        return {name: array[numbers] for name, array in self._strides.items()}

    @functools.cached_property
    def _strides(self) -> Recipes:
        starts, lengths, repeated = strides(self._tokens, self._width, self._stride)
        return {"index": starts, "text_start": starts, "text_length": lengths, "repeated": repeated}

    @property
    def _tokens(self) -> int:
        return len(self.split.ids) - self.ahead


class NextToken(_Windows):
    """Windows for language models.

    Examples hold `tokens` and `targets`, the same shifted by one, both int32 (context,), `weight` float32 (context,),
    and `index`, the window's first token. In evaluation, `weight` is 1 on targets that no earlier window has: every
    token of the text but the first counts once, after at least context - stride tokens (fewer at the very beginning).
    `window_weight` is 1 on all targets of whole windows, and so counts overlaps again.
    """

    ahead = 1  # for the last target

    @property
    def _stride(self) -> int:
        return self.data.eval_stride or self._width

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        tokens, targets, index = raw["text"][:-1], raw["text"][1:], recipe["index"]
        every = draws.namespace(index).ones(self._width, np.float32)
        if draw is not None:
            return {"tokens": tokens, "targets": targets, "weight": every, "index": index}
        place, length = np.arange(self._width), recipe["text_length"]
        return {
            "tokens": padded(tokens, length, self._pad),
            "targets": padded(targets, length, self._pad),
            "index": index,
            "weight": ((place >= recipe["repeated"]) & (place < length)).astype(np.float32),
            "window_weight": draws.namespace(index).where(length == self._width, every, np.float32(0)),
        }


@dataclasses.dataclass(frozen=True)
class Masking:
    """BERT's corruption (Devlin et al. 2019, §3.1) of ids 0 … size - 1.

    It chooses each token with probability `rate`, and at least one in a window. The mask replaces 80 % of these, and a
    random ordinary token 10 %; the rest stay. Special ids are neither chosen nor drawn as replacements.
    """

    rate: float
    size: int
    special: tuple[int, ...]
    mask: int

    @classmethod
    def of(cls, tokeniser: Tokeniser, rate: float) -> "Masking":
        """Prepares to mask a tokeniser's ids; raises UsageError if it has no mask token."""
        if "mask" not in tokeniser.special:
            raise UsageError(
                "A masked language model needs a tokeniser with a mask token, but data.tokeniser has only "
                f"{', '.join(tokeniser.special) or 'ordinary ones'}; for words, write words(marks=True)."
            )
        return cls(rate, tokeniser.size, tuple(sorted(tokeniser.special.values())), tokeniser.special["mask"])

    def __call__(
        self, ids: Int32[np.ndarray, " n"], real: Bool[np.ndarray, " n"], draw: Draws
    ) -> tuple[Int32[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Corrupts ids where they are `real`; returns them, and which were chosen."""
        xp, count = draws.namespace(ids), len(ids)
        lot = xp.where(real & ~xp.isin(ids, np.array(self.special, np.int32)), draw.fine(count), np.uint32(2**24))
        chosen = (lot < 2**24) & ((lot < threshold(self.rate)) | (lot == lot.min()))
        fate, other = draw.fine(count), self._ordinary(draw, count)
        changed = xp.where(fate < threshold(_MASKED), np.int32(self.mask), other)
        return xp.where(chosen & (fate < threshold(_MASKED + _RANDOM)), changed, ids), chosen

    def _ordinary(self, draw: Draws, count: int) -> Int32[np.ndarray, " count"]:
        drawn = draw.integer(self.size - len(self.special), count)
        for special in self.special:  # ascending: each shift skips one special id more
            drawn = drawn + (drawn >= special).astype(np.int32)
        return drawn


class MaskedTokens(_Windows):
    """Windows for masked language models, between start and end tokens if the tokeniser has them.

    Examples hold `tokens` (corrupted) and `targets` (original), int32 (context,), `weight` float32 (context,), 1 on
    chosen tokens, `length` int32, the number of tokens before padding, and `index`, the window's first token. Training
    draws new masks every epoch; evaluation's are fixed.
    """

    @property
    def _width(self) -> int:
        return self.data.context - len(self._marks)

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        ids, length, index = raw["text"], recipe.get("text_length", self._width), recipe["index"]
        xp, place = draws.namespace(index), np.arange(self.data.context)
        if len(self._marks):
            start, end = self._marks
            marked = xp.concatenate([xp.full(1, start), ids, xp.full(1, end)])
            ids, length = xp.where(place == length + 1, end, marked), length + 2
        original = padded(ids, length, self._pad)
        corrupted, chosen = self._masking(original, place < length, draw or Draws(draws.EVALUATION, index))
        return {
            "tokens": corrupted,
            "targets": original,
            "weight": chosen.astype(np.float32),
            "length": xp.int32(length),
            "index": recipe["index"],
        }

    @functools.cached_property
    def _masking(self) -> Masking:
        return Masking.of(self.tokenisers["text"], self.data.mask_rate)

    @functools.cached_property
    def _marks(self) -> Int32[np.ndarray, " marks"]:
        special = self._special
        return np.array([special["start"], special["end"]] if {"start", "end"} <= special.keys() else [], np.int32)


class Labelled(TextExamples):
    """Documents with their classes.

    Examples hold `tokens` int32 (context,), the document's first or last ones and then padding, `length` int32, the
    number of tokens before padding (0 if a document has none), `label` int32, `weight` float32 (1), and `index`, the
    document's row in the source, from 0.
    """

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        start, length = self.split.places("text", numbers).values()
        shown = np.minimum(length, self.data.context)
        start = start if self.data.keep == "first" else start + length - shown
        own = {"index": self.split.rows[numbers], "label": self.split.labels[numbers]}
        return own | {"text_start": start, "text_length": shown}

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        del draw
        xp = draws.namespace(recipe["index"])
        return {
            "tokens": padded(raw["text"], recipe["text_length"], self._pad),
            "length": xp.int32(recipe["text_length"]),
            "label": xp.int32(recipe["label"]),
            "weight": xp.float32(1),
            "index": recipe["index"],
        }
