"""Batches of text for three tasks: the next token, masked tokens, and the class of a document."""

import dataclasses
import functools
from typing import Any, Protocol

import numpy as np
from jaxtyping import Int32

from attention.errors import UsageError
from train.data import pipeline
from train.data.text.corpus import LabelledText, RunningText
from train.data.text.masking import Masking
from train.data.text.windows import Cuts, Strides, padded, truncated

Example = dict[str, Any]
_EVALUATION = 0x3A5C  # the seed of the masks of evaluation, which are the same in every run


class Examples(Protocol):
    """A split cut into examples; `len` is how many an epoch of training has."""

    eval_length: int

    def __len__(self) -> int: ...

    def train(self, index: int, epoch: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns the index-th example of an epoch; `seed` is that of all cuts, `rng` the example's generator."""

    def evaluate(self, index: int) -> Example:
        """Returns the index-th of `eval_length` examples."""


def train_batches(
    examples: Examples, data: pipeline.BatchSizes, seed: int, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Returns endless batches of shuffled examples; see `train.data.pipeline.batched` for the iterator.

    Args:
      examples: The examples of the training split.
      data: Batch size and workers.
      seed: The seed of the order, the cuts and the masks, which are independent of one another.
      process_index: This process takes the `process_index`-th block of each global batch.
      process_count: How many processes share it.
    """
    order, drawing, cuts = np.random.SeedSequence(seed).generate_state(3).tolist()
    indices = pipeline.endless(len(examples), order)
    numbered = indices.map_with_index(functools.partial(_numbered, len(examples)))
    stream = numbered.random_map(functools.partial(_drawn, examples, cuts), seed=drawing)
    return pipeline.batched(stream, data, process_index, process_count)


def eval_batches(
    examples: Examples, data: pipeline.BatchSizes, process_index: int = 0, process_count: int = 1
) -> pipeline.BatchIterator:
    """Yields every example once, in order, the last batch padded with weight 0; see `train.data.pipeline.in_order`."""
    return pipeline.in_order(examples.evaluate, examples.eval_length, data, process_index, process_count)


class _Windows:
    """Examples that are windows of a text: those of `_cuts` in training and of `_strides` in evaluation."""

    _cuts: Cuts
    _strides: Strides

    def __len__(self) -> int:
        return len(self._cuts)

    @property
    def eval_length(self) -> int:
        """The number of windows in evaluation."""
        return len(self._strides)


@dataclasses.dataclass(frozen=True)
class NextToken(_Windows):
    """Windows for language models.

    Examples hold `tokens` and `targets`, the tokens one further, both int32 (context,), `weight` float32 (context,),
    and `index`, the window's first token. In evaluation, `weight` is 1 on targets that no window before had, so that
    each token of the text but the first counts once, with at least context - stride tokens before it (but at the very
    beginning); `window_weight` is 1 on every target of whole windows, which counts those in overlaps again.

    Attributes:
      text: The split.
      context: Tokens in a window.
      stride: The distance between windows of evaluation.
      pad: The id that pads the last window.
    """

    text: RunningText
    context: int
    stride: int
    pad: int

    def train(self, index: int, epoch: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `Examples`."""
        start = self._cuts.start(index, epoch, seed)
        return self._window(start, start + self.context) | {"weight": np.ones(self.context, np.float32)}

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `Examples`."""
        weights = {"weight": self._strides.weight(index), "window_weight": self._strides.whole_weight(index)}
        return self._window(*self._strides.span(index)) | weights

    def _window(self, start: int, stop: int) -> Example:
        tokens, targets = self.text.ids[start:stop], self.text.ids[start + 1 : stop + 1]
        pair = {"tokens": padded(tokens, self.context, self.pad), "targets": padded(targets, self.context, self.pad)}
        return pair | {"index": np.int64(start)}

    @functools.cached_property
    def _cuts(self) -> Cuts:
        return Cuts(len(self.text.ids), self.context, ahead=1)

    @functools.cached_property
    def _strides(self) -> Strides:
        return Strides(len(self.text.ids) - 1, self.context, self.stride)


@dataclasses.dataclass(frozen=True)
class MaskedTokens(_Windows):
    """Windows for masked language models, between the start and end tokens where the tokeniser has them.

    Examples hold `tokens` (corrupted) and `targets` (not), int32 (context,), `weight` float32 (context,), 1 on the
    chosen tokens, `length` int32, tokens that are no padding, and `index`, the window's first token. Masks are drawn
    anew every epoch in training; those of evaluation are fixed.

    Attributes:
      text: The split.
      context: Tokens in a window, start and end included.
      special: The ids of the tokeniser's special tokens.
      masking: How tokens are chosen and replaced.
    """

    text: RunningText
    context: int
    special: dict[str, int]
    masking: Masking

    def train(self, index: int, epoch: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `Examples`."""
        start = self._cuts.start(index, epoch, seed)
        return self._window(start, start + self._inner, rng)

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `Examples`."""
        return self._window(*self._strides.span(index), np.random.default_rng([_EVALUATION, index]))

    def _window(self, start: int, stop: int, rng: np.random.Generator) -> Example:
        original = np.concatenate([*self._around[:1], self.text.ids[start:stop], *self._around[1:]]).astype(np.int32)
        corrupted, chosen = self.masking(original, rng)
        pad = self.special.get("pad", 0)
        return {
            "tokens": padded(corrupted, self.context, pad),
            "targets": padded(original, self.context, pad),
            "weight": padded(chosen, self.context, 0).astype(np.float32),
            "length": np.int32(len(original)),
            "index": np.int64(start),
        }

    @functools.cached_property
    def _around(self) -> list[Int32[np.ndarray, " 1"]]:
        both = {"start", "end"} <= self.special.keys()
        return [np.array([self.special[name]], np.int32) for name in ("start", "end")] if both else []

    @functools.cached_property
    def _inner(self) -> int:
        return self.context - len(self._around)

    @functools.cached_property
    def _cuts(self) -> Cuts:
        return Cuts(len(self.text.ids), self._inner)

    @functools.cached_property
    def _strides(self) -> Strides:
        return Strides(len(self.text.ids), self._inner, self._inner)


@dataclasses.dataclass(frozen=True)
class Labelled:
    """Documents with their classes.

    Examples hold `tokens` int32 (context,), the first or last of the document and padding after them, `length` int32,
    how many are no padding (0 where a document has no token), `label` int32, `weight` float32 (1), and `index`, the
    document's row in the source, from 0 on.

    Attributes:
      text: The split.
      context: The most tokens of an example.
      keep: The tokens of a longer document to keep: 'first' or 'last'.
      pad: The id that pads shorter documents.
    """

    text: LabelledText
    context: int
    keep: str
    pad: int

    def __len__(self) -> int:
        return len(self.text)

    @property
    def eval_length(self) -> int:
        """The number of documents."""
        return len(self.text)

    def train(self, index: int, epoch: int, seed: int, rng: np.random.Generator) -> Example:
        """Returns a training example; see `Examples`."""
        return self.evaluate(index)

    def evaluate(self, index: int) -> Example:
        """Returns an example of evaluation; see `Examples`."""
        ids = truncated(self.text.ids(index), self.context, self.keep)
        return {
            "tokens": padded(ids, self.context, self.pad),
            "length": np.int32(len(ids)),
            "label": self.text.labels[index],
            "weight": np.float32(1),
            "index": np.int64(self.text.rows[index]),
        }


def check_long_enough(splits: dict[str, RunningText], train: int, held_out: int) -> None:
    """Raises UsageError where training text has fewer than `train` tokens, or other text fewer than `held_out`."""
    lengths = {part: len(text.ids) for part, text in splits.items()}
    if lengths["train"] < train:
        raise UsageError(
            f"The training split has {lengths['train']:,} tokens and one window needs {train:,}; lower data.context or "
            "widen data.train_split."
        )
    for part, tokens in lengths.items():
        if tokens < held_out:
            raise UsageError(f"The {part} split has {tokens} tokens, too few to predict one; widen data.{part}_split.")


def _numbered(length: int, position: int, index: int) -> tuple[int, int]:
    """Returns (index, epoch) of an index and its place in the endless stream."""
    return int(index), position // length


def _drawn(examples: Examples, seed: int, numbered: tuple[int, int], rng: np.random.Generator) -> Example:
    """Returns the training example of (index, epoch)."""
    return examples.train(*numbered, seed, rng)
