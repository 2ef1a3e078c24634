"""Pairs of a source and a target text: the `data` sections, and batches of sentence pairs.

The sentences of a batch have about the same length, so that little of it is padding. Which pairs share a batch depends
on (seed, epoch) alone, so that a resumed run sees the same ones.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Int32, Int64, Integer

from attention.errors import UsageError
from attention.types import Count, Reader, Sentinel, Unit, at_most
from models.fields import field
from train.data import draws, section, sources, tokenisers
from train.data.draws import Draws
from train.data.encodings.corpus import Corpus
from train.data.pipeline import NOTHING, Example, Raw, Recipe, Recipes
from train.data.text.examples import TextExamples, padded
from train.data.text.section import CachedTextSection


def bucketed(
    lengths: Int64[np.ndarray, " n"],
    bounds: tuple[int, ...],
    batch_size: int,
    order: Int64[np.ndarray, " n"],
    fill: bool = False,
) -> tuple[Int64[np.ndarray, "batches batch_size"], Int64[np.ndarray, " batches"]]:
    """Groups examples of about the same length into batches, shortest first; within a bucket, `order` decides.

    `bounds` are the lengths that batches are padded to, ascending. With `fill`, NOTHING fills the last batch of each
    bucket. Without it, examples left over join the next longer bucket, and those left in the longest are dropped. Gives
    the indices of each batch's examples, and the bound that it is padded to.
    """
    bucket = np.searchsorted(bounds, lengths)[order]
    left, groups = order[:0], []
    for number in range(len(bounds)):
        members = np.concatenate([left, order[bucket == number]])
        if fill:
            members = np.append(members, np.full(-len(members) % batch_size, NOTHING))
        whole = len(members) // batch_size * batch_size
        groups.append(members[:whole].reshape(-1, batch_size))
        left = members[whole:]
    return np.concatenate(groups), np.repeat(bounds, [len(group) for group in groups])


def parse_bounds(text: str, longest: int, field: str) -> tuple[int, ...]:
    """Reads rising lengths below the longest: with a longest of 32, '8,16' gives (8, 16, 32), and '' gives (32,)."""
    try:
        bounds = (*(int(part) for part in text.split(",") if text), longest)
    except ValueError:
        bounds = (0, longest)
    if any(low >= high for low, high in itertools.pairwise((0, *bounds))):
        raise UsageError(
            f"{field} must be rising lengths between 1 and {longest - 1}, below the longest sentence, such as "
            f"'{max(1, longest // 4)},{max(2, longest // 2)}', or '' for none, but it is {text!r}."
        )
    return bounds


class WrittenExamples(TextExamples):
    """The base of examples with a target text: the rows of a split that are short enough."""

    def __len__(self) -> int:
        return len(self.fitting)

    @property
    def too_long(self) -> int:
        """The number of rows left out."""
        return len(self.split) - len(self)

    @functools.cached_property
    def fitting(self) -> Int64[np.ndarray, " n"]:
        """The indices of the rows that are short enough, end tokens included."""
        fits = [self.split.lengths(side) + 1 <= most for side, most in self.data.limits.items()]
        return np.flatnonzero(np.all(fits, axis=0))

    @functools.cached_property
    def special(self) -> Mapping[str, Mapping[str, int]]:
        """The `marks` of each column's tokeniser."""
        return {side: tokenisers.marks(tokeniser.special) for side, tokeniser in self.tokenisers.items()}

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        """Describes some examples; NOTHING is a pair of empty texts."""
        index = np.where(numbers == NOTHING, NOTHING, self.fitting[numbers])
        recipes = {"index": index}
        for name in self.split.columns:
            recipes |= {name: array * (index != NOTHING) for name, array in self.split.places(name, index).items()}
        return recipes


class Sentences(WrittenExamples):
    """The pairs of a split that are short enough.

    Batches hold `source` int32 (B, S), with an end token and padding, `source_length` int32 (B,), the decoder's input
    `tokens` int32 (B, T), which begins with the start token, `targets` int32 (B, T), the same shifted by one, up to the
    end token, `weight` float32 (B, T), 1 on targets before padding, and `index` (B,), the pair's place in the whole
    split, or -1 for none.
    """

    whole_batches = True

    @functools.cached_property
    def source_lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of each source, end token included."""
        return self.split.lengths("source")[self.fitting] + 1

    @functools.cached_property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """The length of the longer side of each pair, end token included."""
        return np.maximum(self.source_lengths, self.split.lengths("target")[self.fitting] + 1)

    def epoch(self, seed: int, number: int) -> Recipes:
        order = draws.permutation(len(self), draws.ORDER, seed, number)
        batches, bounds = bucketed(self.lengths, self.data.bounds, self.data.batch_size, order)
        shuffled = draws.permutation(len(batches), draws.BATCHES, seed, number)
        return self._bounded(batches[shuffled], bounds[shuffled])

    def evaluation(self, count: int) -> Recipes:
        """Describes pairs bucket by bucket, with each bucket's last batch filled up."""
        size = self.data.eval_batch_size
        return self._bounded(*bucketed(self.lengths[:count], self.data.bounds, size, np.arange(count), fill=True))

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        """Pads a pair to its bucket's bound, or to a side's limit if that is less."""
        del draw
        bound = recipe["bound"] if "bound" in recipe else self.data.bounds[-1]
        source, target, real = raw["source"][:bound], raw["target"][:bound], recipe["index"] != NOTHING
        return {
            "source": with_end(source, recipe["source_length"], self.special["source"]),
            "source_length": draws.namespace(recipe["index"]).int32(recipe["source_length"] + 1),
            **written(target, recipe["target_length"], self.special["target"], real),
            "index": recipe["index"],
        }

    def why_host(self, training: bool) -> str:
        several = len(self.data.bounds) > 1
        return "batches of data.buckets differ in length" if several else super().why_host(training)

    def blank(self, example: Example, recipe: Recipe) -> Example:
        """Keeps a pair of empty texts as it is: a source without tokens would leave nothing to attend to."""
        del recipe
        return example

    def _bounded(self, batches: Int64[np.ndarray, "batches B"], bounds: Int64[np.ndarray, " batches"]) -> Recipes:
        recipes = self.recipes(batches.reshape(-1))
        return recipes | ({"bound": np.repeat(bounds, batches.shape[1])} if len(self.data.bounds) > 1 else {})


def with_end(ids: Int32[np.ndarray, " width"], length: int, special: Mapping[str, int]) -> Int32[np.ndarray, " width"]:
    """Puts the end token after the first `length` ids, and padding after that."""
    ended = draws.namespace(ids).where(np.arange(len(ids)) == length, np.int32(special["end"]), ids)
    return padded(ended, length + 1, special["pad"])


def written(
    ids: Int32[np.ndarray, " width"], length: int, special: Mapping[str, int], real: bool = True
) -> dict[str, np.ndarray]:
    """Makes a decoder's input, its targets and their weights from a target text of `length` tokens.

    `ids` are longer than the text by at least one; without `real`, weights are 0. `special` are its `marks`.
    """
    read = draws.namespace(ids).concatenate([np.full(1, special["start"], np.int32), ids[:-1]])
    return {
        "tokens": padded(read, length + 1, special["pad"]),
        "targets": with_end(ids, length, special),
        "weight": ((np.arange(len(ids)) <= length) & real).astype(np.float32),
    }


@dataclasses.dataclass(frozen=True)
class WrittenTextData(CachedTextSection):
    """The base of sections with a target text: its length, and how the model searches for it."""

    batch_size: int = 64
    eval_batch_size: int = 128
    target_length: Annotated[Count, Unit("tokens")] = field(64, "Longest target, in tokens, end token included.")
    translations: Annotated[Count, Sentinel(0, "none")] = field(
        0,
        "Validation texts that the model writes at each evaluation, for BLEU. At the end it writes all test texts.",
        may_change=True,
    )
    beams: Annotated[Count, at_most(1000)] = field(
        1, "Number of beams in the search; 1 is greedy search.", may_change=True
    )
    length_penalty: float = field(
        1.0, "Beam search divides log-probabilities by the length to this power.", may_change=True
    )

    EXAMPLES: ClassVar[type[WrittenExamples]]
    WHAT: ClassVar[str]  # the examples, in words
    spare = -1  # room for the end token

    @property
    def limits(self) -> dict[str, int]:
        return {"target": self.target_length}

    def load(self) -> Corpus:
        corpus = super().load()
        for side, tokeniser in corpus.tokenisers.items():
            if missing := [name for name in ("start", "end") if name not in tokeniser.special]:
                spec = getattr(self, f"{side}_tokeniser") or self.source_tokeniser
                raise UsageError(
                    f"A target text needs a start and an end token, but {spec!r} has no {missing[0]}; for "
                    "words, write words(marks=True)."
                )
        return corpus

    def examples(self, corpus: Corpus) -> dict[str, WrittenExamples]:
        examples_of = super().examples(corpus)
        for part, examples in examples_of.items():
            least = self.batch_size if part == "train" and examples.whole_batches else 1
            if len(examples) < least:
                limits = " and ".join(f"data.{side}_length={most}" for side, most in self.limits.items())
                raise UsageError(
                    f"{len(examples)} {self.WHAT} of data.{part}_split fit in {limits}, but {least} are needed; allow "
                    "longer ones, or widen the split."
                )
        return examples_of


@dataclasses.dataclass(frozen=True)
class TranslationData(WrittenTextData):
    """Parallel text."""

    source: Annotated[str, Reader(sources.checker("pairs"))] = field(
        "dates()",
        "`dates(...)` (dates written out in several languages, in the package; see `train.data.sources.dates`), "
        "`file:PATH` (a table, lines of tab-separated pairs, or two files aligned line by line; see "
        "`train.data.sources.file`), `hf:NAME` or `hf:NAME:CONFIG`, or `tfds:NAME`.",
    )
    train_split: str = field(
        "train",
        "Split to learn from, such as `train[:70%]`. Slices count pairs; they are cut after shuffling, always in the "
        "same way, and never separate the translations of one source sentence.",
    )
    source_column: str = field(
        "source",
        "Where the source is: the column of a table (`translation.de` is the key `de` in the column `translation`), "
        "the number of a tab-separated column, from 1, or the suffix of one of two aligned files.",
    )
    target_column: str = field("target", "Where the target is, as in `source_column`.")
    source_tokeniser: Annotated[str, Reader(tokenisers.check)] = field(
        "bytes",
        "`bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH`, `hf:NAME` or "
        "`marian:NAME/source.spm`; see `train.data.tokenisers`. It needs a start and an end token.",
    )
    target_tokeniser: Annotated[
        str, Sentinel("", "the source's, which then learns from both sides"), Reader(tokenisers.check)
    ] = field("", "The target's tokeniser, as in `source_tokeniser`.")
    source_vocabulary: section.Vocabulary = field(
        0, "Size that the source's vocabulary must have.", size_of=("source_tokeniser",)
    )
    target_vocabulary: section.Vocabulary = field(
        0,
        "Size that the target's vocabulary must have; the source's if they share a tokeniser.",
        size_of=("source_tokeniser", "target_tokeniser"),
    )
    source_length: Annotated[Count, Unit("tokens")] = field(
        64, "Longest source, in tokens, end token included. Longer pairs are left out, and counted."
    )
    buckets: str = field("", "Shorter lengths to which batches of short pairs are padded, such as `8,16`; '' is none.")
    by_length: str = field(
        "",
        "Source lengths, such as `8,16`, that divide the test sentences into groups with a BLEU each; '' is none.",
        may_change=True,
    )

    EXAMPLES, WHAT, sliced_by = Sentences, "pairs", "source"
    COLUMNS: ClassVar[Mapping[str, str]] = {"source": "source_column", "target": "target_column"}

    def __post_init__(self):
        super().__post_init__()
        parse_bounds(self.buckets, max(self.source_length, self.target_length), "data.buckets")
        parse_bounds(self.by_length, self.source_length, "data.by_length")

    @property
    def bounds(self) -> tuple[int, ...]:
        """The length that each bucket allows a pair's longer side."""
        return parse_bounds(self.buckets, max(self.source_length, self.target_length), "data.buckets")

    @property
    def limits(self) -> dict[str, int]:
        return {"source": self.source_length, **super().limits}

    @property
    def groups(self) -> tuple[int, ...]:
        """The longest source of each group with a BLEU; none without `by_length`."""
        return parse_bounds(self.by_length, self.source_length, "data.by_length") if self.by_length else ()

    @property
    def learned(self) -> dict[str, tuple[str, ...]]:
        if self.target_tokeniser:
            return {"source_tokeniser": ("source",), "target_tokeniser": ("target",)}
        return {"source_tokeniser": ("source", "target")}
