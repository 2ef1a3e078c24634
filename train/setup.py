"""The setup of a training: all that its config decides before there is a state, and checks of the mesh."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from attention.errors import UsageError
from attention.mesh import BATCH
from train import tasks
from train.config.schema import Config
from train.config.timetable import Timetable
from train.mesh import memory, sharding
from train.mesh.feeds import Feed
from train.mesh.program import Context, StepProgram
from train.mesh.replicas import Replicas
from train.state import Params, TrainState
from train.step import Step
from train.tasks import Task


@dataclasses.dataclass(frozen=True)
class Setup:
    """All that a training's config decides before there is a state."""

    config: Config
    task: Task
    timetable: Timetable
    replicas: Replicas
    step: Step

    @classmethod
    def of(
        cls, config: Config, make_task: Callable[[Config], Task] = tasks.of, devices: list[jax.Device] | None = None
    ) -> "Setup":
        """Makes the setup of a config on these devices, by default all of this machine's."""
        replicas = Replicas.of(config, sharding.make_mesh(config.mesh, devices))
        check_training(config, replicas)
        task = make_task(config)
        check_context(config, task, replicas.mesh)
        if replicas.front:
            task.check_stackable()
        setup = cls(config, task, Timetable.of(config, task.train_examples), replicas, Step.of(config, task.loss))
        if config.optimizer.frozen or config.optimizer.rates:  # refuses patterns that match no parameter
            jax.eval_shape(setup.step.init, setup.shapes.params)
        return setup

    def check_memory(self) -> None:
        """Refuses a state and batches that cannot fit on the devices; see `memory.check`."""
        count, training, evaluation = len(self.replicas), self.config.data.batch_size, self.config.data.eval_batch_size
        sizes = [self.task.sources[part].example_bytes for part in ("validation", "test")]
        largest = max(count * training, evaluation) * max(sizes)
        given = {"train.replicas": count, "data.batch_size": training, "data.eval_batch_size": evaluation}
        memory.check(self.replicas.abstract(self.shapes), largest, given, self.replicas.mesh)

    @functools.cached_property
    def shapes(self) -> TrainState:
        """The shapes of one replica's state."""
        with jax.set_mesh(self.replicas.mesh):
            return jax.eval_shape(lambda: self.step.init(self.task.init(jax.random.key(0))))

    def fresh(self, initial: Callable[[Params], tuple[Params, str]]) -> tuple[TrainState, str]:
        """Makes the first state of all replicas, created with its sharding, and a remark on it.

        `initial` replaces one replica's drawn parameters and gives the remark; '' if it changes nothing.
        """
        replicas = self.replicas

        def draw(key: jax.Array) -> TrainState:
            if self.config.source:  # another run's parameters are loaded, and it may have had the same seed
                key = jax.random.fold_in(key, 1)
            return self.step.init(self.task.init(key))

        keys = replicas.arguments(lambda replica: jax.random.key(replicas.seeds[replica]))
        shardings = replicas.shardings(self.shapes)
        state = jax.jit(replicas.over(draw, True), out_shardings=shardings)(keys)
        params, remarks = zip(*map(initial, replicas.unstack(state.params)), strict=True)
        if remarks[0]:
            init = jax.jit(replicas.over(self.step.init, True), out_shardings=shardings)
            state = init(replicas.stack(params))
        return state, remarks[0]

    def program(self, feed: Feed, compiling: Context = contextlib.nullcontext) -> StepProgram:
        """Makes the program that takes the steps, with batches from a feed; see `StepProgram`."""
        return StepProgram(self.step, self.replicas, feed, self.timetable, compiling)

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """The task's description of the model."""
        return self.task.describe(self.shapes.params)


def check_training(config: Config, replicas: Replicas) -> None:
    """Refuses a mesh that does not divide the batch, the heads or the hidden units."""
    wide = tasks.find(config.task).writes  # then evaluation batches are split over all devices, even with replicas
    check_evaluation(config, replicas.mesh, BATCH if wide else replicas.batch_axes)
    count, axes = sharding.divisor(replicas.mesh, replicas.batch_axes)
    sizes = {"data.batch_size": config.data.batch_size}
    sharding.check_divisible(sizes, count * config.train.accumulate, f"{axes} x train.accumulate")


def check_context(config: Config, task: Task, mesh: jax.sharding.Mesh) -> None:
    """Refuses a mesh that splits the sequences of a model or data that cannot be split."""
    if (count := sharding.context(mesh)) == 1:
        return
    if reason := config.model.why_whole():
        raise UsageError(f"mesh.context={count} splits sequences, but {reason}; set mesh.context=1.")
    if config.train.together > 1:
        raise UsageError(f"mesh.context={count} splits the sequences of one replica; set train.replicas=1.")
    sharding.check_divisible(task.lengths(), count, "mesh.context")


def check_evaluation(config: Config, mesh: jax.sharding.Mesh, batch: tuple[str, ...] = BATCH) -> None:
    """Refuses a mesh that cannot evaluate; its axes `batch` split batches."""
    count, axes = sharding.divisor(mesh, batch)
    if count % jax.process_count():
        raise UsageError(
            f"{axes} = {count} does not divide over {jax.process_count()} processes; make it a multiple, since each "
            "process reads its own part of the batch."
        )
    if not sharding.reads_its_own(mesh, batch):
        raise UsageError(
            "mesh.tensor spans several processes, but each process reads its own part of the batch; make mesh.tensor "
            "(x mesh.context) smaller."
        )
    sharding.check_divisible({"data.eval_batch_size": config.data.eval_batch_size}, count, axes)
    sharding.check_divisible(config.model.split_by_tensor(), mesh.shape["tensor"], "mesh.tensor")
