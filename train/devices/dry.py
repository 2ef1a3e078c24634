"""Dry runs: a training step compiled for a mesh, without data and work directory, and XLA's plan of its memory."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from train import tasks
from train.config.schema import Config, MeshConfig
from train.devices import memory, sharding, splits
from train.devices.replicas import Replicas
from train.run.report import outline
from train.state import TrainState
from train.step import Batch, Trainer
from train.tasks import Task


def use_fake_devices(mesh: MeshConfig, devices: int | None) -> None:
    """Makes JAX run on fake devices of this machine's CPU; must be called before JAX looks for devices.

    Args:
      mesh: Gives the number where `devices` does not; an axis of -1 then has one device.
      devices: The number of devices, or None.
    """
    sizes = dataclasses.astuple(mesh)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices or math.prod(s for s in sizes if s > 0))


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A training step as shapes, with nothing on a device.

    Attributes:
      config: The experiment.
      task: The task, with blank data.
      replicas: The replicas, and the mesh.
      trainer: The trainer, which has the step.
      one: The shapes of one replica's state.
      state: The shapes of all replicas' state, with shardings.
      batch: The shapes of the largest batch, with shardings.
    """

    config: Config
    task: Task
    replicas: Replicas
    trainer: Trainer
    one: TrainState
    state: TrainState
    batch: Batch

    @classmethod
    def of(cls, config: Config) -> "DryRun":
        """Returns the dry run of a config, which must state all sizes.

        Raises:
          UsageError: a run would raise it, or a size is not stated.
        """
        replicas = Replicas.of(config, sharding.make_mesh(config.mesh))
        splits.check_training(config, replicas)
        if config.model.pretrained:  # weights have the shapes of random ones
            config = dataclasses.replace(config, model=dataclasses.replace(config.model, pretrained=""))
        small = dataclasses.replace(config.data, batch_size=1, eval_batch_size=1, workers=0)
        task = tasks.find(config.task)(dataclasses.replace(config, data=small), dry=True)
        replicas.check(task)
        trainer = Trainer.of(config, task)
        with jax.set_mesh(replicas.mesh):
            replica_state = trainer.shapes(task)
        batch = batch_of(task, config.data.batch_size, replicas)
        return cls(config, task, replicas, trainer, replica_state, replicas.abstract(replica_state), batch)

    def lower(self) -> jax.stages.Lowered:
        """Lowers the step for the mesh."""
        with jax.set_mesh(self.replicas.mesh):
            return self.replicas.train_step(self.trainer, self.task).lower(self.state, self.batch)

    def report(self) -> Iterator[str]:
        """Compiles the step, and yields lines about its work and memory."""
        task, mesh = self.task, self.replicas.mesh
        yield from outline("Dry run of", task.describe(self.one.params), self.state, mesh, fake="fake ")
        compiled = self.lower().compile()
        size = self.config.data.batch_size * len(self.replicas)
        counted = memory.scaled(size * task.cost().training, "FLOP")
        yield f"A step: {size * task.units_per_example:,} {task.unit}, {counted} counted, {_xla_flops(compiled, mesh)}"
        yield _memory(compiled, self.state, self.batch)


def batch_of(task: Task, size: int, replicas: Replicas) -> Batch:
    """Returns the shapes of a batch of `size` examples for each replica, from a batch of one example."""
    with contextlib.closing(task.train_batches(0, 1)) as batches:
        example = next(batches)
    split, front = NamedSharding(replicas.mesh, replicas.batch_spec(stacked=True)), replicas.front
    return {
        name: jax.ShapeDtypeStruct((*front, size, *x.shape[1:]), x.dtype, sharding=split) for name, x in example.items()
    }


def _xla_flops(compiled: Any, mesh: Mesh) -> str:
    analysis = compiled.cost_analysis() or {}
    return memory.scaled(mesh.size * analysis.get("flops", 0), "FLOP") + " by XLA"


def _memory(compiled: Any, state: TrainState, batch: Batch) -> str:
    plan = compiled.memory_analysis()
    fresh = plan.output_size_in_bytes - plan.alias_size_in_bytes  # outputs that do not reuse the old state's memory
    sizes = {
        "state": memory.bytes_a_device(state),
        "batch": memory.bytes_a_device(batch),
        "gradients and temporaries": plan.temp_size_in_bytes + fresh,
    }
    listed = ", ".join(f"{name} {memory.bytes_text(size)}" for name, size in sizes.items())
    return f"Memory a device during a step: {memory.bytes_text(sum(sizes.values()))} ({listed})"
