"""The `data` section of configs for captioning."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from attention.errors import UsageError
from attention.types import Reader
from models.fields import field
from train.data import section, sources, tokenisers
from train.data.captions.examples import Captions
from train.data.encodings import cache
from train.data.encodings.corpus import Corpus, load
from train.data.encodings.images import LabelledImages, encode
from train.data.images import transforms
from train.data.images.section import ImageSection
from train.data.pairs.section import WrittenTextData
from train.data.sources.rows import DataColumn


@dataclasses.dataclass(frozen=True)
class CaptionedImages(Corpus):
    """Tokenised captions with their images.

    Attributes:
      images: The image of each row of a part, by the part's name.
    """

    images: Mapping[str, LabelledImages] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class CaptionData(WrittenTextData, ImageSection):
    """Images with captions."""

    source: Annotated[str, Reader(sources.checker("captions"))] = field(
        "caption_digits",
        "`caption_digits` (one to four scanned digits and their English words, in the package), `file:TABLE` (paths "
        "and captions) or `hf:NAME`; see `train.data.sources`.",
    )
    image_shape: str = "16x40x1"
    target_column: str = field("caption", "Of tables: the column of the captions.")
    target_tokeniser: Annotated[str, Reader(tokenisers.check)] = field(
        "words(marks=True)",
        "`bytes`, `words(size=15000, marks=True)`, `bpe(size=8000)`, `file:PATH` or `hf:NAME`; see "
        "`train.data.tokenisers`. It needs a start and an end token.",
    )
    target_vocabulary: section.Vocabulary = field(
        0, "What the tokeniser must have.", size_of=("source_tokeniser", "target_tokeniser")
    )
    target_length: int = field(
        8, "Of a caption at most, its end token included. Longer ones are left out, and counted."
    )

    learned: ClassVar[Mapping[str, tuple[str, ...]]] = {"target_tokeniser": ("target",)}
    sliced_by = "image"

    @property
    def columns(self) -> list[DataColumn]:
        """The columns of the images and the captions."""
        return [
            DataColumn("image", "data.image_key", self.image_key),
            DataColumn("target", "data.target_column", self.target_column),
        ]

    def load(self) -> CaptionedImages:
        """Loads the captions; see `train.data.encodings.corpus.load`.

        Raises:
          UsageError: that raises it, the tokeniser lacks a special token, or images have another size than stated.
        """
        corpus = load(self)
        self.check_marks(corpus)
        root = cache.root(self.cache_dir)
        pictures = {name: encode(rows, self.image_shape, root) for name, rows in corpus.rows.items()}
        for part in pictures.values():
            section.check_stated("image_shape", self.image_shape, "x".join(map(str, part.image_shape)))
        return CaptionedImages(**vars(corpus), images=pictures)

    def blank(self) -> CaptionedImages:
        """Makes a row of zeros with a black image; see `CachedTextSection.blank`."""
        shape = self.stated_shape
        black = LabelledImages([{"image": np.zeros(shape, np.uint8)}], 1, shape, range(1))
        return CaptionedImages(**vars(super().blank()), images={"train": black})

    def shape(self, corpus: CaptionedImages) -> tuple[int, int, int]:
        """Computes (H, W, C) of the images that the model sees.

        Raises:
          UsageError: they differ between training and evaluation, or between splits.
        """
        given = {part.image_shape for part in corpus.images.values()}
        chains = {"data.train_transforms": self.train_transforms, "data.eval_transforms": self.eval_transforms}
        shapes = {
            (name, transforms.output_shape(transforms.parse(chain), shape))
            for name, chain in chains.items()
            for shape in given
        }
        if len({shape for _, shape in shapes}) > 1:
            sizes = " and ".join(f"{'x'.join(map(str, shape))} after {name}" for name, shape in sorted(shapes))
            raise UsageError(f"Images must have one size, but have {sizes}; end both chains of transforms alike.")
        return next(iter(shapes))[1]

    def examples(self, corpus: CaptionedImages) -> dict[str, Captions]:
        """Makes the captioned images that batches are made of, by split."""
        special = tokenisers.marks(corpus.tokeniser.special)
        captions = {
            part: Captions(self, split, special, corpus.images[split.split.name])
            for part, split in corpus.splits.items()
        }
        for part, examples in captions.items():
            if not len(examples):
                raise UsageError(
                    f"No caption of data.{part}_split fits in data.target_length={self.target_length}; raise it, or "
                    "widen the split."
                )
        return captions
