"""Captioning: the loss of a caption's next token, and exact matches, BLEU and chrF of what the model writes."""

from typing import ClassVar

from models.captioner import CaptionerConfig
from train.config.schema import Config
from train.data.captions import CaptionData
from train.tasks.writing import WritingTask


class Captioning(WritingTask):
    """A model that writes what an image shows, and captioned images. Batches are those of `Captions`.

    Captions that are longer than the config's length are left out of training and evaluation, and counted.
    """

    data_type = CaptionData
    source = ("image",)
    model_types: ClassVar = {"captioner": CaptionerConfig}

    def sizes_of(self, config: Config) -> tuple[tuple[int, int, int], int, int]:
        return config.data.shape(self.corpus), self.corpus.tokeniser.size, config.data.target_length

    @property
    def tokens(self) -> int:
        return max(self.lengths().values())

    def lengths(self) -> dict[str, int]:
        return {"the tokens of an image": self.model.source_length, "data.target_length": self._data.target_length}
