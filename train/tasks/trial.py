"""Trials: the accuracy of answers, in sequences like those of training and at other sizes."""

from collections.abc import Mapping
from typing import ClassVar

import jax

from attention.errors import UsageError
from attention.operations import Cost
from models.frame import FrameConfig
from train import losses
from train.config.schema import Config
from train.data.pipeline import Examples
from train.data.trials.section import DRAWN, TrialData
from train.step import Batch, Sums
from train.tasks.task import Task


class TrialTask(Task):
    """A model and a trial. Batches hold `tokens`, `targets`, `weight`, which is 1 for answers, and `size`.

    The loss and the accuracy are measured on sequences like those of training. On test data, `accuracy_at_16` is
    measured on sequences of size 16, and so for each size in the trial's `tested`.
    """

    best = "accuracy"
    best_is_highest = True
    unit = "tokens"
    data_type = TrialData
    model_types: ClassVar = {"frame": FrameConfig}

    def opened(self, dry: bool) -> Mapping[str, Examples]:
        del dry  # nothing is read
        self.trial = self._data.trial
        return self._data.load()

    def sizes_of(self, config: Config) -> tuple[int, int, int, bool]:
        longest = max(map(self.trial.length, (self.trial.size, *self.trial.tested)))
        return self.trial.vocabulary, self.trial.channels, longest, self.trial.pooled

    @property
    def units_per_example(self) -> int:
        return self.trial.length(self.trial.size)

    def inputs(self, batch: Batch) -> tuple[jax.Array]:
        return (batch["tokens"],)

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        logits, own = self.applied(params, batch, key)
        found, weight = losses.of_classes(logits, batch["targets"], self.smoothing(key)) | own, batch["weight"]
        sums = losses.of_examples(found, weight * (batch["size"] == DRAWN)[:, None])
        for tested in self.trial.tested if key is None else ():
            there = losses.of_examples({"accuracy": found["accuracy"]}, weight * (batch["size"] == tested)[:, None])
            sums |= {f"{name}_at_{tested}": values for name, values in there.items()}
        return sums

    def metrics(self, split: str, means: dict[str, float]) -> dict[str, float]:
        """Divides the sums for other sizes, which only test data have, by their weights."""
        found = {name: mean for name, mean in means.items() if "_at_" not in name}
        if split == "test":
            for size in self.trial.tested:
                found[f"accuracy_at_{size}"] = means[f"accuracy_at_{size}"] / means[f"weight_at_{size}"]
        return found

    def cost(self) -> Cost:
        """Counts the operations for a training example of the greatest size; test examples may be longer."""
        vocabulary, channels, _, pooled = self.sizes
        return self.model.config.cost(vocabulary, channels, self.trial.length(self.trial.size), pooled)

    def baselines(self) -> dict[str, float]:
        return {"chance_accuracy": self.trial.chance}

    def describe(self, params: dict) -> dict[str, str | int]:
        """Adds the bytes of a decode cache for a sequence of each size, where the mechanisms have one."""
        try:
            held = {f"cache_bytes_at_{size}": self._cache_bytes(size) for size in self.trial.tested}
            return super().describe(params) | {"cache_bytes": self._cache_bytes(self.trial.size)} | held
        except UsageError:
            return super().describe(params)

    def remarks(self) -> list[str]:
        return [f"Trial: {self._data.source}; chance is {self.trial.chance:.4g}"]

    def _cache_bytes(self, size: int) -> int:
        length, model = self.trial.length(size), self.model
        held = jax.eval_shape(lambda: jax.tree.leaves(model.config.init_caches(1, length, length, model.dtype)))
        return sum(x.size * x.dtype.itemsize for x in held if x.ndim)
