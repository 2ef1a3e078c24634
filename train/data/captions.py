"""Images with captions: the `data` section, and the examples."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np
from jaxtyping import Integer

from attention.errors import UsageError
from attention.types import Reader
from models.fields import field
from train.data import section, sources, tokenisers
from train.data.draws import Draws
from train.data.encodings.corpus import Corpus
from train.data.images import transforms
from train.data.images.section import ImageSection, Pictures
from train.data.pairs import WrittenExamples, WrittenTextData, written
from train.data.pipeline import Example, Material, Raw, Recipe, Recipes


class Captions(WrittenExamples):
    """The captioned images of a split whose captions are short enough.

    Examples hold `image` float32 (H, W, C), the decoder's input `tokens` int32 (T,), which begins with the start token,
    `targets` int32 (T,), the same shifted by one, up to the end token, `weight` float32 (T,), 1 on targets before
    padding, and `index` int64, the caption's place in the whole split, or -1 for none.
    """

    def recipes(self, numbers: Integer[np.ndarray, " n"]) -> Recipes:
        return super().recipes(numbers) | {"image": numbers}

    def materials(self, training: bool) -> list[Material]:
        images = dataclasses.replace(self.split.images, places=self.split.rows[self.fitting])
        return [*super().materials(training), Pictures(images, *self.data.chain(training))]

    def example(self, raw: Raw, recipe: Recipe, draw: Draws | None = None) -> Example:
        target = written(raw["target"], recipe["target_length"], self.special["target"])
        return {"image": self.data.transformed(raw["image"], draw), **target, "index": recipe["index"]}


@dataclasses.dataclass(frozen=True)
class CaptionData(WrittenTextData, ImageSection):
    """Images with captions."""

    source: Annotated[str, Reader(sources.checker("captions"))] = field(
        "caption_digits",
        "`caption_digits` (one to four scanned digits and their English words, in the package), `file:TABLE` (paths "
        "and captions) or `hf:NAME`; see `train.data.sources`.",
    )
    image_shape: str = "16x40x1"
    target_column: str = field("caption", "Column of the captions in a table.")
    target_tokeniser: Annotated[str, Reader(tokenisers.check)] = field(
        "words(marks=True)",
        "`bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH` or `hf:NAME`; see "
        "`train.data.tokenisers`. It needs a start and an end token.",
    )
    target_vocabulary: section.Vocabulary = field(
        0, "Size that the tokeniser's vocabulary must have.", size_of=("source_tokeniser", "target_tokeniser")
    )
    target_length: int = field(
        8, "Longest caption, in tokens, end token included. Longer ones are left out, and counted."
    )

    EXAMPLES, WHAT, sliced_by = Captions, "captions", "image"
    learned: ClassVar[Mapping[str, tuple[str, ...]]] = {"target_tokeniser": ("target",)}
    COLUMNS: ClassVar[Mapping[str, str]] = {"image": "image_key", "target": "target_column"}

    def load(self) -> Corpus:
        corpus = super().load()
        for split in corpus.splits.values():
            section.check_stated("image_shape", self.image_shape, section.sides(split.images.image_shape))
        return corpus

    def blank(self) -> Corpus:
        corpus = super().blank()
        split = dataclasses.replace(corpus.splits["train"], images=self.black())
        return dataclasses.replace(corpus, splits=dict.fromkeys(corpus.splits, split))

    def shape(self, corpus: Corpus) -> tuple[int, int, int]:
        """Computes (H, W, C) of the images that the model sees; raises UsageError if they have several shapes."""
        shapes = {
            (field, transforms.output_shape(transforms.parse(chain), split.images.image_shape))
            for chain, field in map(self.chain, (True, False))
            for split in corpus.splits.values()
        }
        if len({shape for _, shape in shapes}) > 1:
            sizes = " and ".join(f"{section.sides(shape)} after {name}" for name, shape in sorted(shapes))
            raise UsageError(f"Images must have one size, but have {sizes}; end both chains of transforms alike.")
        return next(iter(shapes))[1]
