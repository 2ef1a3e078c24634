"""Translation: the loss of the target's next token, and BLEU, chrF and exact matches of generated translations."""

from typing import Any, ClassVar

from attention.errors import UsageError
from models.encoder_decoder import EncoderDecoderConfig
from models.published import pretrained
from models.seq2seq import Seq2SeqConfig
from train.config.schema import Config
from train.data.pairs import TranslationData
from train.generation import translation_scores
from train.tasks.writing import WritingTask


class Translation(WritingTask):
    """A model that translates a source to a target, and pairs of both. Batches are those of `Sentences`.

    Pairs longer than the config's lengths are counted and left out of training and evaluation.
    """

    data_type = TranslationData
    source = ("source", "source_length")
    model_types: ClassVar = {"encoder_decoder": EncoderDecoderConfig, "seq2seq": Seq2SeqConfig}

    def sizes_of(self, config: Config) -> tuple[int, int, int, int]:
        source, target = self.corpus.tokenisers.values()
        if config.model.pretrained:
            pretrained.check_fit(config.model.pretrained, config.model, target.size, self.tokens, target.special)
        return source.size, target.size, config.data.source_length, config.data.target_length

    def check_stackable(self) -> None:
        if self._data.buckets:
            raise UsageError(
                f"data.buckets={self._data.buckets!r} gives batches of several lengths, which train.replicas cannot "
                "stack; set --config.data.buckets= (none), or train.replicas=1 (in a sweep --replicas=no)."
            )

    def scores(self, split: str, texts: list[str], references: list[str]) -> dict[str, float]:
        """Adds BLEU for test sentences grouped by their lengths, if the config has such groups."""
        scores = super().scores(split, texts, references)
        if split != "test":
            return scores
        lengths = self.sources[split].source_lengths
        return scores | translation_scores.by_length(texts, references, lengths, self._data.groups)

    def describe(self, params: dict) -> dict[str, Any]:
        return super().describe(params) | {"source_vocabulary": self.corpus.tokenisers["source"].size}

    @property
    def limits(self) -> str:
        return f"{self._data.source_length} and {self._data.target_length} tokens"

    def lengths(self) -> dict[str, int]:
        sizes = {"data.source_length": self._data.source_length, "data.target_length": self._data.target_length}
        return sizes | {f"bucket {n} of data.buckets": bound for n, bound in enumerate(self._data.bounds[:-1], 1)}
