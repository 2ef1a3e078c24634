"""Masked language modelling: the model predicts masked tokens (Devlin et al. 2019, §3.1; without sentence pairs)."""

import contextlib
from typing import Any, ClassVar

import jax
import numpy as np

from attention import Mask
from attention.errors import UsageError
from models.masked_lm import MaskedLMConfig
from models.published import pretrained
from train import losses
from train.config.schema import Config
from train.data.text.section import MaskedTextData
from train.step import Batch, Sums
from train.tasks.ngrams import COUNTED, ngram_losses
from train.tasks.text import TextTask, perplexity


class MaskedLanguageModelling(TextTask):
    """A model of masked tokens and its text. Batches hold `tokens`, `targets`, `length` and `weight`.

    The weight is 1 for the tokens to predict. Every run evaluates with the same masks.
    """

    unit, predicts_tokens = "tokens", True
    data_type = MaskedTextData
    model_types: ClassVar = {"masked_lm": MaskedLMConfig}

    def sizes_of(self, config: Config) -> tuple[int, int]:
        tokeniser, model = self.corpus.tokeniser, config.model
        pad = tokeniser.special.get("pad", model.padding_token)
        if pad != model.padding_token:
            raise UsageError(
                f"model.padding_token is {model.padding_token}, but data.tokeniser={config.data.tokeniser!r} pads with "
                f"{pad}; set --config.model.padding_token={pad}."
            )
        if model.pretrained:
            pretrained.check_fit(model.pretrained, model, tokeniser.size, config.data.context)
        return tokeniser.size, config.data.context

    def inputs(self, batch: Batch) -> tuple[Any, ...]:
        return batch["tokens"], Mask(key_lengths=batch["length"])

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        return losses.of_examples(self.token_losses(params, batch, key, losses.of_classes), batch["weight"])

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        return means | {"perplexity": perplexity(means["loss"])}

    def baselines(self) -> dict[str, float]:
        """Measures the unigram's perplexity and the most frequent token's accuracy, for the tokens that are masked."""
        train, size = self.corpus.splits["train"].ids[:COUNTED], self.corpus.tokeniser.size
        with contextlib.closing(self.eval_batches("test", 0, 1)) as batches:
            targets = np.concatenate([batch["targets"][batch["weight"] > 0] for batch in batches])
        most_frequent = np.bincount(train, minlength=size).argmax()
        return {
            "unigram_perplexity": perplexity(float(np.mean(ngram_losses(train, targets, 0, size)))),
            "most_frequent_accuracy": float(np.mean(targets == most_frequent)),
        }
