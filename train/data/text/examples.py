"""Examples of text for three tasks: the next token, masked tokens, and the class of a document."""

import dataclasses
import functools
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int32

from attention.errors import UsageError
from train.data.pipeline import Example, Examples
from train.data.store.corpus import TokenisedSplit
from train.data.text.windows import Cuts, Ids, Strides, padded, truncated
from train.data.tokenisers import Tokeniser

_EVALUATION = 0x3A5C  # the seed of the masks of evaluation, which are the same in every run
_MASKED, _RANDOM = 0.8, 0.1  # of the chosen tokens; the rest stay as they are


@dataclasses.dataclass(frozen=True)
class TextExamples(Examples):
    """The base of examples of text.

    Attributes:
      data: The section of the config.
      split: The `TokenisedSplit`.
      tokeniser: The tokeniser of the text.
    """

    tokeniser: Tokeniser

    def _pad(self, ids: Ids) -> Int32[np.ndarray, " context"]:
        """Pads ids with the padding id, or any id where there is none, since padded tokens have weight 0."""
        return padded(ids, self.data.context, self.tokeniser.special.get("pad", 0))


class _Windows(TextExamples):
    """Examples that are windows of a text: those of `_cuts` in training and of `_strides` in evaluation."""

    ahead: ClassVar[int] = 0  # how many tokens after a window are needed

    def __len__(self) -> int:
        return len(self._cuts)

    @property
    def eval_length(self) -> int:
        """The number of windows in evaluation."""
        return len(self._strides)

    @property
    def width(self) -> int:
        """The text's tokens in a window."""
        return self.data.context

    @property
    def stride(self) -> int:
        """The distance between windows of evaluation."""
        return self.width

    def train(self, index: int, position: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `train.data.pipeline.Examples`."""
        start = self._cuts.start(index, position // len(self), seed)
        return self._training(start, start + self.width, rng)

    def _training(self, start: int, stop: int, rng: np.random.Generator) -> Example:
        raise NotImplementedError

    @functools.cached_property
    def _cuts(self) -> Cuts:
        return Cuts(len(self.split.ids), self.width, self.ahead)

    @functools.cached_property
    def _strides(self) -> Strides:
        return Strides(len(self.split.ids) - self.ahead, self.width, self.stride)


class NextToken(_Windows):
    """Windows for language models.

    Examples hold `tokens` and `targets`, the tokens one further, both int32 (context,), `weight` float32 (context,),
    and `index`, the window's first token. In evaluation, `weight` is 1 on targets that no window before had, so that
    each token of the text but the first counts once, with at least context - stride tokens before it (but at the very
    beginning); `window_weight` is 1 on every target of whole windows, which counts those in overlaps again.
    """

    ahead = 1  # the last target

    @property
    def stride(self) -> int:
        """The distance between windows of evaluation."""
        return self.data.eval_stride or self.width

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `train.data.pipeline.Examples`."""
        weights = {"weight": self._strides.weight(index), "window_weight": self._strides.whole_weight(index)}
        return self._window(*self._strides.span(index)) | weights

    def _training(self, start: int, stop: int, rng: np.random.Generator) -> Example:
        return self._window(start, stop) | {"weight": np.ones(self.width, np.float32)}

    def _window(self, start: int, stop: int) -> Example:
        tokens, targets = self.split.ids[start:stop], self.split.ids[start + 1 : stop + 1]
        return {"tokens": self._pad(tokens), "targets": self._pad(targets), "index": np.int64(start)}


@dataclasses.dataclass(frozen=True)
class Masking:
    """BERT's corruption (Devlin et al. 2019, §3.1).

    It chooses tokens and replaces 80 % of them by the mask, 10 % by any ordinary token; 10 % stay.

    Attributes:
      rate: The probability that a token is chosen. In a window where none was, one is.
      size: Ids are 0 … size - 1.
      special: Ids that are never chosen, and that never replace a token at random.
      mask: The id of the mask.
    """

    rate: float
    size: int
    special: tuple[int, ...]
    mask: int

    @classmethod
    def of(cls, tokeniser: Tokeniser, rate: float) -> "Masking":
        """Returns the masking for a tokeniser's ids.

        Raises:
          UsageError: the tokeniser has no mask token.
        """
        if "mask" not in tokeniser.special:
            raise UsageError(
                "A masked language model needs a tokeniser with a mask token, but data.tokeniser has only "
                f"{', '.join(tokeniser.special) or 'ordinary ones'}; for words, write words(marks=True)."
            )
        return cls(rate, tokeniser.size, tuple(sorted(tokeniser.special.values())), tokeniser.special["mask"])

    def __call__(
        self, ids: Int32[np.ndarray, " n"], rng: np.random.Generator
    ) -> tuple[Int32[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
        """Returns the corrupted ids, and which were chosen."""
        may = ~np.isin(ids, self.special)
        chosen = (rng.random(len(ids)) < self.rate) & may
        candidates = np.flatnonzero(may)
        if len(candidates) and not chosen.any():
            chosen[rng.choice(candidates)] = True
        fate = rng.random(len(ids))
        out = np.where(chosen & (fate < _MASKED), np.int32(self.mask), ids)
        randomised = chosen & (fate >= _MASKED) & (fate < _MASKED + _RANDOM)
        out[randomised] = self._ordinary(rng, int(randomised.sum()))
        return out, chosen

    def _ordinary(self, rng: np.random.Generator, count: int) -> Int32[np.ndarray, " count"]:
        """Draws ids uniformly from all but the special ones."""
        drawn = rng.integers(self.size - len(self.special), size=count, dtype=np.int32)
        for special in self.special:  # ascending, so that each shift lands where the ones before left room
            drawn += drawn >= special
        return drawn


class MaskedTokens(_Windows):
    """Windows for masked language models, between the start and end tokens where the tokeniser has them.

    Examples hold `tokens` (corrupted) and `targets` (not), int32 (context,), `weight` float32 (context,), 1 on the
    chosen tokens, `length` int32, tokens that are no padding, and `index`, the window's first token. Masks are drawn
    anew every epoch in training; those of evaluation are fixed.
    """

    @property
    def width(self) -> int:
        """The text's tokens in a window, without start and end."""
        return self.data.context - len(self._marks)

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `train.data.pipeline.Examples`."""
        return self._training(*self._strides.span(index), np.random.default_rng([_EVALUATION, index]))

    def _training(self, start: int, stop: int, rng: np.random.Generator) -> Example:
        original = np.concatenate([self._marks[:1], self.split.ids[start:stop], self._marks[1:]]).astype(np.int32)
        corrupted, chosen = self._masking(original, rng)
        return {
            "tokens": self._pad(corrupted),
            "targets": self._pad(original),
            "weight": padded(chosen, self.data.context, 0).astype(np.float32),
            "length": np.int32(len(original)),
            "index": np.int64(start),
        }

    @functools.cached_property
    def _masking(self) -> Masking:
        return Masking.of(self.tokeniser, self.data.mask_rate)

    @functools.cached_property
    def _marks(self) -> Int32[np.ndarray, " marks"]:
        """The start and the end token, or none where the tokeniser has not both."""
        special = self.tokeniser.special
        return np.array([special["start"], special["end"]] if {"start", "end"} <= special.keys() else [], np.int32)


class Labelled(TextExamples):
    """Documents with their classes.

    Examples hold `tokens` int32 (context,), the first or last of the document and padding after them, `length` int32,
    how many are no padding (0 where a document has no token), `label` int32, `weight` float32 (1), and `index`, the
    document's row in the source, from 0 on.
    """

    def evaluate(self, index: int) -> Example:
        """Returns an example of training or evaluation; see `train.data.pipeline.Examples`."""
        [ids] = self.split.row(index)
        ids = truncated(ids, self.data.context, self.data.keep)
        return {
            "tokens": self._pad(ids),
            "length": np.int32(len(ids)),
            "label": self.split.labels[index],
            "weight": np.float32(1),
            "index": np.int64(self.split.rows[index]),
        }


def check_long_enough(splits: dict[str, TokenisedSplit], context: int, ahead: int) -> None:
    """Raises UsageError where training text has no whole window, with the tokens after it, or other text no token."""
    lengths = {part: len(text.ids) for part, text in splits.items()}
    if lengths["train"] < context + ahead:
        raise UsageError(
            f"The training split has {lengths['train']:,} tokens and one window needs {context + ahead:,}; lower "
            "data.context or widen data.train_split."
        )
    for part, tokens in lengths.items():
        if tokens < 1 + ahead:
            raise UsageError(f"The {part} split has {tokens} tokens, too few to predict one; widen data.{part}_split.")
