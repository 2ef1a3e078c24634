"""The setup of a training: all that its config decides before there is a state, and whether the mesh divides it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from attention.errors import UsageError
from attention.mesh import BATCH
from models.surgery import low_rank
from train import tasks
from train.config.schema import Config
from train.config.timetable import Timetable
from train.devices import memory, sharding
from train.devices.replicas import Replicas
from train.start import another_run
from train.state import Params, TrainState
from train.step import Trainer
from train.tasks import Task
from train.tasks.adapted import adapted


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
    def of(
        cls, config: Config, make_task: Callable[[Config], Task] = tasks.of, devices: list[jax.Device] | None = None
    ) -> "Setup":
        """Returns the setup of a config on the devices, by default all of this machine.

        Raises:
          UsageError: the config or its data cannot be used.
        """
        replicas = Replicas.of(config, sharding.make_mesh(config.mesh, devices))
        check_training(config, replicas)
        task = adapted(make_task(config), config)
        check_context(config, task, replicas.mesh)
        if replicas.front:
            task.check_stackable()
        setup = cls(config, task, Timetable.of(config, task.train_examples), replicas, Trainer.of(config, task))
        if config.optimizer.frozen or config.optimizer.rates:
            setup.shapes  # noqa: B018  # raises the errors of patterns before anything is written
        return setup

    def check_start(self) -> None:
        """Raises UsageError where a first step cannot be taken, as another run to start from is not there."""
        if self.config.train.init_from:
            another_run.source(self.config.train.init_from, self.task.files())

    def initial(self, params: Params) -> tuple[Params, str]:
        """Replaces one replica's initial parameters by published weights or another run's, and reports it if it does.

        Raises:
          UsageError: there are no such weights, or they do not fit.
        """
        params, additions = low_rank.split(params)
        params, remark = self.task.pretrained(params)
        if self.config.train.init_from:
            params, report = another_run.load(self.config.train.init_from, params, self.task.files())
            remark = "\n".join(filter(None, [remark, report]))
        return low_rank.joined(params, additions), remark

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of one replica's state."""
        with jax.set_mesh(self.replicas.mesh):
            return self.trainer.shapes(self.task)

    def check_memory(self) -> None:
        """Raises a UsageError where state and batch cannot fit on the devices; see `memory.check`."""
        count, sizes = len(self.replicas), {n: getattr(self.config.data, n) for n in ("batch_size", "eval_batch_size")}
        batch = (
            max(count * sizes["batch_size"], sizes["eval_batch_size"]) * self.task.sources["validation"].example_bytes
        )
        given = {"train.replicas": count} | {f"data.{name}": size for name, size in sizes.items()}
        memory.check(self.replicas.abstract(self.shapes), batch, given, self.replicas.mesh)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The task's description of the model."""
        return self.task.describe(self.shapes.params)


def check_training(config: Config, replicas: Replicas) -> None:
    """Raises UsageError where the mesh does not divide the batch, the heads or the hidden units."""
    wide = tasks.find(config.task).writes  # its evaluation batches are split over all devices, wherever replicas are
    check_evaluation(config, replicas.mesh, BATCH if wide else replicas.batch_axes)
    count, axes = sharding.divisor(replicas.mesh, replicas.batch_axes)
    sizes = {"data.batch_size": config.data.batch_size}
    sharding.check_divisible(sizes, count * config.train.accumulate, f"{axes} x train.accumulate")


def check_context(config: Config, task: Task, mesh: jax.sharding.Mesh) -> None:
    """Raises UsageError where the mesh splits sequences, and model or data cannot be split so."""
    if (count := sharding.context(mesh)) == 1:
        return
    if reason := config.model.why_whole():
        raise UsageError(f"mesh.context={count} splits sequences, but {reason}; set mesh.context=1.")
    if config.train.replicas > 1:
        raise UsageError(f"mesh.context={count} splits the sequences of one replica; set train.replicas=1.")
    sharding.check_divisible(task.lengths(), count, "mesh.context")


def check_evaluation(config: Config, mesh: jax.sharding.Mesh, batch: tuple[str, ...] = BATCH) -> None:
    """Makes the checks that evaluation needs too; `batch` are the axes of the mesh that split batches."""
    count, axes = sharding.divisor(mesh, batch)
    if count % jax.process_count():
        raise UsageError(
            f"{axes} = {count} does not divide over {jax.process_count()} processes; "
            "make it a multiple, since each process reads its own part of the batch."
        )
    if not sharding.reads_its_own(mesh, batch):
        raise UsageError(
            "mesh.tensor reaches over several processes, but each process reads its own part of the batch; make "
            "mesh.tensor (x mesh.context) smaller."
        )
    sharding.check_divisible({"data.eval_batch_size": config.data.eval_batch_size}, count, axes)
    sharding.check_divisible(config.model.split_by_tensor(), mesh.shape["tensor"], "mesh.tensor")
