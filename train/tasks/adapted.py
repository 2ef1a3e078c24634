"""A task whose model has low-rank additions to its kernels, which the model itself does not know."""

from typing import Any

import jax

from models.surgery import low_rank
from models.surgery.low_rank import Lora
from train.config.schema import Config
from train.state import count_parameters
from train.step import Batch, Sums
from train.tasks.task import Task

_KEY = 7  # folded into the key of initial values, which the model's own take unchanged


class Adapted:
    """A task with the parameters of `Lora.added`; all else is that of the task within."""

    def __init__(self, task: Task, lora: Lora):
        self._task, self._lora = task, lora

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def init(self, key: jax.Array) -> dict:
        """Returns initial parameters, with the additions."""
        return self._lora.added(self._task.init(key), jax.random.fold_in(key, _KEY))

    def measures(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """See `Task`."""
        return self._task.measures(self._lora.merged(params), batch, key)

    def loss(self, params: dict, batch: Batch, key: jax.Array | None) -> Sums:
        """See `Task`."""
        return self._task.loss(self._lora.merged(params), batch, key)

    def measured(self, split: str, params: dict, mesh: jax.sharding.Mesh) -> dict[str, float]:
        """See `Task`."""
        return self._task.measured(split, self._lora.merged(params), mesh)

    def describe(self, params: dict) -> dict[str, str | int]:
        """Adds how many parameters the additions have."""
        plain, additions = low_rank.split(params)
        return self._task.describe(plain) | {"lora_parameters": count_parameters(additions)}


def adapted(task: Task, config: Config) -> Task:
    """Returns the task with the additions that `optimizer.lora` asks for, or the task itself."""
    lora = low_rank.parse(config.optimizer.lora)
    return Adapted(task, lora) if lora else task  # type: ignore[return-value]
