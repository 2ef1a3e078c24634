"""The setup of a training: all that its config decides before there is a state, and whether the mesh divides it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
from flax.traverse_util import flatten_dict

from attention.errors import UsageError
from attention.mesh import BATCH
from models.published import pretrained
from models.surgery import exchange, low_rank, starts
from models.surgery.starts import Distilled, Fresh, Like
from models.transformer import TransformerConfig
from train import optimizer, tasks
from train.config.schema import Config
from train.config.timetable import Timetable
from train.devices import memory, sharding
from train.devices.replicas import Replicas
from train.start import another_run, exchanged
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
        if self._start != Fresh():
            self._original()
        if pattern := self.config.train.fresh:
            if not (self.config.train.init_from or getattr(self.config.model, "pretrained", "")):
                raise UsageError(
                    f"train.fresh={pattern!r} is for a model whose weights are loaded; set model.pretrained or "
                    "train.init_from."
                )
            if self._start != Fresh():
                raise UsageError("train.fresh and train.exchanged both say how arrays start; give one of them.")
            optimizer.check_matched("train.fresh", pattern, optimizer.matching(pattern, self.shapes.params))

    def initial(self, params: Params) -> tuple[Params, str]:
        """Replaces one replica's initial parameters by published weights or another run's, and reports it if it does.

        Raises:
          UsageError: there are no such weights, or they do not fit.
        """
        new, additions = low_rank.split(params)
        params, remark = self._loaded(self.task, new)
        if self.config.train.fresh:
            params, more = self._with_fresh(params, new)
            remark = f"{remark}\n{more}"
        if self._start != Fresh():
            distilled = self._start if isinstance(self._start, Distilled) else None
            load = lambda task, params: self._loaded(task, params)[0]  # noqa: E731
            params, more = exchanged.start(self.task, self._original(), load, params, self.replicas, distilled)
            remark = "\n".join(filter(None, [remark, more]))
        return low_rank.joined(params, additions), remark

    @property
    def _start(self) -> Fresh | Like | Distilled:
        return starts.parse(self.config.train.exchanged)

    def _loaded(self, task: Task, params: Params) -> tuple[Params, str]:
        """Returns a task's parameters with the weights that the config names, and a report."""
        params, remark = task.pretrained(params)
        if not self.config.train.init_from:
            return params, remark
        params, report = another_run.load(self.config.train.init_from, params, task.files())
        return params, "\n".join(filter(None, [remark, report]))

    def _with_fresh(self, params: Params, new: Params) -> tuple[Params, str]:
        """Returns loaded parameters with the initial values of those that `train.fresh` matches, and a report."""
        chosen = optimizer.matching(self.config.train.fresh, new)
        names = [path for path, fresh in flatten_dict(chosen, sep="/").items() if fresh]
        params = jax.tree.map(lambda fresh, ours, theirs: ours if fresh else theirs, chosen, new, params)
        return params, f"Fresh again: {pretrained.drawn_together(names)}."

    def _original(self) -> TransformerConfig:
        """Returns the config of the model whose weights are loaded.

        Raises:
          UsageError: there is none, or it differs in more than its mechanisms, or in none of them.
        """
        model, directory = self.config.model, self.config.train.init_from
        if directory:
            there = another_run.source(directory, self.task.files())[1].model
        elif model.pretrained:
            there = pretrained.original(model.pretrained, model)
        else:
            raise UsageError(
                f"train.exchanged={self.config.train.exchanged!r} is for layers of a model whose weights are loaded; "
                "set model.pretrained or train.init_from."
            )
        original = exchange.same_but_mechanisms(model, there)
        if not exchange.exchanged(model, original):
            raise UsageError(
                f"train.exchanged={self.config.train.exchanged!r} is for layers with another mechanism than the loaded "
                "model's, and there is none; set it to fresh."
            )
        return original

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of one replica's state."""
        with jax.set_mesh(self.replicas.mesh):
            return self.trainer.shapes(self.task)

    def check_memory(self) -> None:
        """Raises a UsageError where state and batch cannot fit on the devices; see `memory.check`."""
        count, training, evaluation = len(self.replicas), self.config.data.batch_size, self.config.data.eval_batch_size
        largest = max(count * training, evaluation) * self.task.sources["validation"].example_bytes
        given = {"train.replicas": count, "data.batch_size": training, "data.eval_batch_size": evaluation}
        memory.check(self.replicas.abstract(self.shapes), largest, given, self.replicas.mesh)

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
