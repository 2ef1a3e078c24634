"""The base of the tasks on text: a corpus, its tokeniser, and batches of it."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from models.surgery import low_rank
from train import losses
from train.config.schema import Config
from train.step import Batch
from train.tasks.task import Task

MOST = 700.0  # nats; the exponential of more does not fit a float


class TextTask(Task):
    """A task whose data are a corpus. A subclass defines `sizes_of`, `inputs` and `measures`.

    Attributes:
      corpus: The tokenised text.
    """

    def __init__(self, config: Config, dry: bool = False):
        """Opens the corpus, which tokenises it the first time, and describes the model; see `Task` for `dry`.

        Raises:
          UsageError: the text is missing, or the model cannot be built for it.
        """
        self._data, self._seed, self.lora = config.data, config.seed, low_rank.parse(config.optimizer.lora)
        self._label_smoothing, self._loss_chunk = config.train.label_smoothing, config.train.loss_chunk
        self.corpus = config.data.blank() if dry else config.data.load()
        self.sources = config.data.examples(self.corpus)
        self.train_examples = len(self.sources["train"])
        self.units_per_example = config.data.context if self.unit == "tokens" else 1
        self.sizes = self.sizes_of(config)
        self.model = config.model.build(*self.sizes, dtype=jnp.dtype(config.train.precision))
        self._check_model()

    def sizes_of(self, config: Config) -> tuple[int, ...]:
        """Collects the sizes that the model is built for.

        Raises:
          UsageError: the model and the corpus do not fit together.
        """
        raise NotImplementedError

    def files(self) -> dict[str, str]:
        """Adds the tokenisers, without which the parameters mean nothing."""
        made = self.corpus.tokenisers.items()
        return super().files() | {f"{name}_tokeniser.json".removeprefix("text_"): one.dumps() for name, one in made}

    def describe(self, params: dict) -> dict[str, str | int]:
        """Adds the size of the vocabulary."""
        return super().describe(params) | {"vocabulary": self.corpus.tokeniser.size}

    def of_tokens(self, params: dict, batch: Batch, key: jax.Array | None, measure: Callable) -> Any:
        """Applies a function of logits, targets and smoothing to each token; see `losses.of_tokens`.

        With smoothing it adds the `plain_loss`; see `unsmoothed`.
        """
        output, smoothing = self.applied(params, batch, key, method="output"), self.smoothing(key)

        def measured(logits: jax.Array, targets: jax.Array) -> dict[str, jax.Array]:
            plain = {"plain_loss": losses.cross_entropy(logits, targets)} if smoothing else {}
            return measure(logits, targets, smoothing) | plain

        return losses.of_tokens(measured, output, batch["targets"], self._loss_chunk)

    def smoothing(self, key: jax.Array | None) -> float:
        """Chooses the label smoothing, which is 0 in evaluation."""
        return 0.0 if key is None else self._label_smoothing

    def _example(self) -> Batch:
        return {name: jnp.asarray(value)[None] for name, value in self.sources["validation"].evaluate(0).items()}

    def _check_model(self) -> None:
        """Traces the model as it evaluates and the loss of training: wrong sizes raise before anything is written."""
        key = jax.random.key(0)
        jax.eval_shape(lambda: self.loss(self.init(key), self._example(), key))


def unsmoothed(means: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Separates the mean loss of unsmoothed targets, which perplexity needs, from the other means."""
    return means.get("plain_loss", means["loss"]), {n: mean for n, mean in means.items() if n != "plain_loss"}


def perplexity(loss: float) -> float:
    """Raises e to the mean loss in nats."""
    return math.exp(min(loss, MOST)) if math.isfinite(loss) else loss
