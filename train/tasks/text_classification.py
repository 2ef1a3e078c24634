"""Text classification: cross-entropy and accuracy."""

import jax
import jax.numpy as jnp
import numpy as np

from models import flops
from models.text_classifier import TextClassifier, TextClassifierConfig
from train import losses
from train.config.schema import Config
from train.data.text.section import LabelledTextData
from train.step import Batch, Sums
from train.tasks.task import refuse_loss_chunk
from train.tasks.text import TextTask


class TextClassification(TextTask):
    """A classifier and its texts. Batches hold `tokens`, `length`, `label`, and `weight` 0 on padding."""

    best = "accuracy"
    data_type = LabelledTextData
    model_types = {"text_classifier": TextClassifierConfig}  # noqa: RUF012

    def make_model(self, config: Config) -> TextClassifier:
        """See `build`.

        Raises:
          UsageError: the config would split losses of tokens.
        """
        refuse_loss_chunk(config)
        return build(config, self.corpus.tokeniser.size, self.corpus.num_classes)

    def inputs(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The tokens, and how many of them are real."""
        return batch["tokens"], batch["length"]

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """Sums over the batch's texts."""
        logits = self.applied(params, batch, key)
        return losses.sums(losses.of_classes(logits, batch["label"], self.smoothing(key)), batch["weight"])

    def baselines(self) -> dict[str, float]:
        """The accuracy of always the training split's most frequent class."""
        train, test = (self.corpus.splits[split].labels for split in ("train", "test"))
        return {"most_frequent_accuracy": float((test == np.bincount(train).argmax()).mean())}

    def cost(self) -> flops.Cost:
        """See `models.flops`."""
        return flops.text_classifier(self.model.config, self.model.length, self.model.classes)


def build(config: Config, vocabulary: int, classes: int) -> TextClassifier:
    """The model of a config, for so many tokens and classes."""
    return TextClassifier(config.model, vocabulary, classes, config.data.context, jnp.dtype(config.train.precision))
