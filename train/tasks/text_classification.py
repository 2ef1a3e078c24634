"""Text classification: cross-entropy and accuracy."""

from typing import ClassVar

import jax
import numpy as np

from models.text_classifier import TextClassifierConfig
from train import losses
from train.config.schema import Config
from train.data.text.section import LabelledTextData
from train.step import Batch, Sums
from train.tasks.text import TextTask


class TextClassification(TextTask):
    """A classifier and its texts. Batches hold `tokens`, `length`, `label` and `weight`, which is 0 for padding."""

    best = "accuracy"
    best_is_highest = True
    data_type = LabelledTextData
    model_types: ClassVar = {"text_classifier": TextClassifierConfig}

    def sizes_of(self, config: Config) -> tuple[int, int, int]:
        return self.corpus.tokeniser.size, len(self.corpus.class_names), config.data.context

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.corpus.class_names

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        return batch["tokens"], batch["length"]

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        logits, own = self.applied(params, batch, key)
        return losses.of_examples(losses.of_classes(logits, batch["label"], self.smoothing(key)) | own, batch["weight"])

    def baselines(self) -> dict[str, float]:
        """Measures the accuracy of always choosing the most frequent class of the training split."""
        train, test = (self.corpus.splits[split].labels for split in ("train", "test"))
        return {"most_frequent_accuracy": float((test == np.bincount(train).argmax()).mean())}
