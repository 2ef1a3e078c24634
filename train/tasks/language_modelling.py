"""Language modelling: the loss of the next token, reported as perplexity and as bits per byte of text."""

import math
from typing import ClassVar

import jax
import numpy as np

from models.gpt import GPTConfig
from models.published import pretrained
from train import losses
from train.config.schema import Config
from train.data.text.section import TextData
from train.data.tokenisers.base import ByteTokeniser
from train.step import Batch, Sums
from train.tasks.ngrams import COUNTED, ngram_losses
from train.tasks.text import TextTask, perplexity


class LanguageModelling(TextTask):
    """A model of the next token and its text. Batches hold `tokens`, `targets` and `weight`, 0 for targets to ignore.

    Evaluation counts every token of a split once. Where its windows overlap (`data.eval_stride`), each token after the
    first window is predicted from at least context − stride others. `window_perplexity` is then computed as in the
    published code of DiGiugno (arXiv 2502.17206): it averages over whole windows, so a token counts once for every
    window that has it.
    """

    unit, predicts_tokens = "tokens", True
    data_type = TextData
    model_types: ClassVar = {"gpt": GPTConfig}

    def sizes_of(self, config: Config) -> tuple[int, int]:
        size, model = self.corpus.tokeniser.size, config.model
        if model.pretrained:
            pretrained.check_fit(model.pretrained, model, size, config.data.context)
        return size, config.data.context

    def inputs(self, batch: Batch) -> tuple[jax.Array]:
        return (batch["tokens"],)

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        measured = self.token_losses(params, batch, key, losses.in_nats)
        sums = losses.of_examples(measured, batch["weight"])
        if self._data.eval_stride and "window_weight" in batch:
            whole = losses.of_examples({"loss": measured["loss"]}, batch["window_weight"])
            sums |= {f"window_{name}": values for name, values in whole.items()}
        return sums

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Adds perplexities, which are per token, and bits per byte, which compare across tokenisers.

        A tokeniser that loses text (unknown words) makes the task easier: compare its bits only with those of its kind.
        """
        window_loss, windows = means.pop("window_loss", 0.0), means.pop("window_weight", 0.0)
        means |= {"perplexity": perplexity(means["loss"]), "bits_per_byte": self._bits(split, means["loss"])}
        return means | ({"window_perplexity": perplexity(window_loss / windows)} if windows else {})

    def baselines(self) -> dict[str, float]:
        """Measures n-gram models: with 2 and 5 bytes of context, or for other tokens the unigram."""
        train, test = self.corpus.splits["train"].ids[:COUNTED], self.corpus.splits["test"].ids[:]
        contexts = (2, 5) if isinstance(self.corpus.tokeniser, ByteTokeniser) else (0,)
        results = {}
        for context in contexts:
            loss = float(np.mean(ngram_losses(train, test, context, self.corpus.tokeniser.size)))
            name = f"context_{context}" if context else "unigram"
            results |= {f"{name}_perplexity": perplexity(loss), f"{name}_bits_per_byte": self._bits("test", loss)}
        return results

    def _bits(self, split: str, loss: float) -> float:
        """Converts the mean loss of a split's tokens in nats to bits per byte of its text."""
        text = self.corpus.splits[split]
        return loss / math.log(2) * len(text.ids) / text.bytes
