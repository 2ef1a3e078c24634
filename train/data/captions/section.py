"""The `data` section of configs for captioning."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, ClassVar

import numpy as np

from attention.errors import UsageError
from attention.types import Reader
from models.fields import field
from train.data import section, tokenisers
from train.data.captions import sources
from train.data.captions.examples import Captions
from train.data.images import transforms
from train.data.images.section import ImageSection
from train.data.pairs.section import WrittenTextData
from train.data.pairs.sources import order_of
from train.data.store.corpus import Corpus, load


@dataclasses.dataclass(frozen=True)
class CaptionData(WrittenTextData, ImageSection):
    """Images with captions."""

    source: Annotated[str, Reader(sources.check)] = field(
        "caption_digits",
        "`caption_digits` (one to four scanned digits and their English words, in the package), `file:TABLE` (paths "
        "and captions) or `hf:NAME`; see `train.data.captions.sources`.",
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

    def load(self) -> Corpus:
        """Loads the captions; see `train.data.store.corpus.load`.

        Raises:
          UsageError: that raises it, the tokeniser lacks a special token, or images have another size than stated.
        """
        corpus = load(self, sources.load, functools.partial(order_of, key_of=sources.key_of))
        self.check_marks(corpus)
        for rows in corpus.rows.values():
            section.check_stated("image_shape", self.image_shape, "x".join(map(str, rows.image_shape)))
        return corpus

    def shape(self, corpus: Corpus) -> tuple[int, int, int]:
        """Returns (H, W, C) of the images that the model sees.

        Raises:
          UsageError: they differ between training and evaluation, or between splits.
        """
        given = {rows.image_shape for rows in corpus.rows.values()} or {self.stated_shape}
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

    def examples(self, corpus: Corpus) -> dict[str, Captions]:
        """Returns the captioned images that batches are made of, by split."""
        special = tokenisers.marks(corpus.tokeniser.special)
        blank = [{"image": np.zeros(self.stated_shape, np.uint8)}] if not corpus.rows else []
        images = {name: rows.images for name, rows in corpus.rows.items()}
        captions = {
            part: Captions(self, split, special, images.get(split.split.name, blank))
            for part, split in corpus.splits.items()
        }
        for part, examples in captions.items():
            if not len(examples):
                raise UsageError(
                    f"No caption of data.{part}_split fits in data.target_length={self.target_length}; raise it, or "
                    "widen the split."
                )
        return captions
