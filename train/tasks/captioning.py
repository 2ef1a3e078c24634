"""Captioning: the loss of a caption's next token, and exact matches, BLEU and chrF of generated captions."""

from typing import ClassVar

from models.captioner import CaptionerConfig
from train.config.schema import Config
from train.data.captions import CaptionData
from train.tasks.writing import WritingTask


class Captioning(WritingTask):
    """A model that describes images, and captioned images. Batches are those of `Captions`.

    Captions longer than `data.target_length` are counted and left out of training and evaluation.
    """

    data_type = CaptionData
    source = ("image",)
    model_types: ClassVar = {"captioner": CaptionerConfig}

    def sizes_of(self, config: Config) -> tuple[tuple[int, int, int], int, int]:
        return config.data.shape(self.corpus), self.corpus.tokeniser.size, config.data.target_length

    def lengths(self) -> dict[str, int]:
        return {"the tokens of an image": self.model.source_length, "data.target_length": self._data.target_length}
