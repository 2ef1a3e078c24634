"""The setup of a training: all that its config decides before there is a state."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from train import tasks
from train.config.schema import Config
from train.config.timetable import Timetable
from train.devices import sharding, splits
from train.devices.replicas import Replicas
from train.state import TrainState
from train.step import Trainer
from train.tasks import Task


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a training is made of.

    Attributes:
      config: The experiment.
      task: The task, with its data.
      timetable: When what is done.
      replicas: The replicas, and the mesh that holds them.
      trainer: The trainer, which has the step.
    """

    config: Config
    task: Task
    timetable: Timetable
    replicas: Replicas
    trainer: Trainer

    @classmethod
    def of(cls, config: Config, make_task: Callable[[Config], Task] = tasks.of) -> "Setup":
        """Returns the setup of a config on all devices.

        Raises:
          UsageError: the config or its data cannot be used.
        """
        replicas = Replicas.of(config, sharding.make_mesh(config.mesh))
        splits.check_training(config, replicas)
        task = make_task(config)
        if replicas.front:
            task.check_stackable()
        return cls(config, task, Timetable.of(config, task.train_examples), replicas, Trainer.of(config, task))

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of one replica's state."""
        with jax.set_mesh(self.replicas.mesh):
            return self.trainer.shapes(self.task)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The task's description of the model."""
        return self.task.describe(self.shapes.params)
