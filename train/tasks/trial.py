"""Trials: the accuracy of answers, in sequences such as those of training and of other sizes."""

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from attention.operations import Cost
from models.frame import FrameConfig
from models.surgery import low_rank
from train import losses
from train.config.schema import Config
from train.data.trials.section import DRAWN, TrialData
from train.step import Batch, Sums
from train.tasks.task import Task, refuse_loss_chunk


class TrialTask(Task):
    """A model and a trial. Batches hold `tokens`, `targets`, `weight`, which is 1 for answers, and `size`.

    The loss and the accuracy are those of sequences such as training has; the test's `accuracy_at_16` is that of
    sequences of size 16, for each of the trial's `tested`.
    """

    best = "accuracy"
    best_is_highest = True
    unit = "tokens"
    data_type = TrialData
    model_types = {"frame": FrameConfig}  # noqa: RUF012

    def __init__(self, config: Config, dry: bool = False):
        """Makes the trial and describes the model; a dry run needs nothing else, as nothing is read.

        Raises:
          UsageError: the model cannot be built for the trial.
        """
        del dry
        refuse_loss_chunk(config)
        self._data, self._seed, self.lora = config.data, config.seed, low_rank.parse(config.optimizer.lora)
        self._label_smoothing = config.train.label_smoothing
        self.trial = config.data.trial
        self.sources = config.data.load()
        self.train_examples = len(self.sources["train"])
        self.units_per_example = self.trial.length(self.trial.size)
        longest = max(map(self.trial.length, (self.trial.size, *self.trial.tested)))
        self.sizes = (self.trial.vocabulary, self.trial.channels, longest, self.trial.pooled)
        self.model = config.model.build(*self.sizes, dtype=jnp.dtype(config.train.precision))
        jax.eval_shape(lambda: self.loss(self.init(jax.random.key(0)), self._example(), jax.random.key(0)))

    def inputs(self, batch: Batch) -> tuple[jax.Array]:
        """Chooses the tokens."""
        return (batch["tokens"],)

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        logits = self.applied(params, batch, key)
        smoothing = 0.0 if key is None else self._label_smoothing
        found, weight, size = losses.of_classes(logits, batch["targets"], smoothing), batch["weight"], batch["size"]
        sums = losses.of_examples(found, weight * (size == DRAWN)[:, None])
        for tested in self.trial.tested if key is None else ():
            there = losses.of_examples({"accuracy": found["accuracy"]}, weight * (size == tested)[:, None])
            sums |= {f"{name}_at_{tested}": values for name, values in there.items()}
        return sums

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Divides what was measured at other sizes, which the test has alone."""
        found = {name: mean for name, mean in means.items() if "_at_" not in name}
        if split == "test":
            for size in self.trial.tested:
                found[f"accuracy_at_{size}"] = means[f"accuracy_at_{size}"] / means[f"weight_at_{size}"]
        return found

    def cost(self) -> Cost:
        """Counts the operations on a training example, of the greatest size; those of the test may be longer."""
        vocabulary, channels, _, pooled = self.sizes
        return self.model.config.cost(vocabulary, channels, self.trial.length(self.trial.size), pooled)

    def baselines(self) -> dict[str, float]:
        """States the accuracy of guesses."""
        return {"chance_accuracy": self.trial.chance}

    def describe(self, params: dict) -> dict[str, str | int]:
        """Adds the bytes of a decode cache of a sequence of each size, where the mechanisms have one."""
        try:
            held = {f"cache_bytes_at_{size}": self._cache_bytes(size) for size in self.trial.tested}
            return super().describe(params) | {"cache_bytes": self._cache_bytes(self.trial.size)} | held
        except UsageError:
            return super().describe(params)

    def remarks(self) -> list[str]:
        """Says what is tried."""
        return [f"Trial: {self._data.source}; chance is {self.trial.chance:.4g}"]

    def _cache_bytes(self, size: int) -> int:
        length, model = self.trial.length(size), self.model
        held = jax.eval_shape(lambda: jax.tree.leaves(model.config.init_caches(1, length, length, model.dtype)))
        return sum(x.size * x.dtype.itemsize for x in held if x.ndim)

    def _example(self) -> Batch:
        return {name: jnp.asarray(value)[None] for name, value in self.sources["validation"].evaluate(0).items()}
