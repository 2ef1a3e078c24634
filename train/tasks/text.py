"""The base of the tasks on text."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax

from train import losses
from train.data.pipeline import Examples
from train.step import Batch
from train.tasks.task import Task

MOST = 700.0  # nats; a float cannot hold the exponential of more


class TextTask(Task):
    """A task on a `corpus`, which is tokenised the first time that it is opened."""

    def opened(self, dry: bool) -> Mapping[str, Examples]:
        self.corpus = self._data.blank() if dry else self._data.load()
        return self._data.examples(self.corpus)

    @property
    def units_per_example(self) -> int:
        return self._data.context if self.unit == "tokens" else 1

    def files(self) -> dict[str, str]:
        """Adds the tokenisers, without which the parameters mean nothing."""
        names = {name: f"{name}_tokeniser.json".removeprefix("text_") for name in self.corpus.tokenisers}
        return super().files() | {names[name]: made.dumps() for name, made in self.corpus.tokenisers.items()}

    def describe(self, params: dict) -> dict[str, str | int]:
        return super().describe(params) | {"vocabulary": self.corpus.tokeniser.size}

    def token_losses(self, params: dict, batch: Batch, key: jax.Array | None, measure: Callable) -> Any:
        """Applies a function of logits, targets and smoothing to each token; see `losses.of_tokens`.

        In training, adds each example's `own_loss`.
        """
        output, own = self.applied(params, batch, key, method="output")
        measured = functools.partial(measure, smoothing=self.smoothing(key))
        return losses.of_tokens(measured, output, batch["targets"], self._loss_chunk) | own


def perplexity(loss: float) -> float:
    """Computes the exponential of a mean loss in nats."""
    return math.exp(min(loss, MOST)) if math.isfinite(loss) else loss
