"""Checks that the mesh divides the batches, heads and hidden units of a config."""

import jax

from attention.errors import UsageError
from attention.mesh import BATCH
from train import tasks
from train.config.schema import Config
from train.devices import sharding
from train.devices.replicas import Replicas


def check_training(config: Config, replicas: Replicas) -> None:
    """Raises UsageError where the mesh does not divide the batch, the heads or the hidden units."""
    wide = tasks.find(config.task).writes  # its evaluation batches are split over all devices, wherever replicas are
    check_evaluation(config, replicas.mesh, BATCH if wide else replicas.batch_axes)
    axes, across = sharding.named(replicas.batch_axes), sharding.parts(replicas.mesh, replicas.batch_axes)
    pieces = across * config.train.accumulate
    sharding.check_divisible({"data.batch_size": (config.data.batch_size, f"{axes} x train.accumulate", pieces)})


def check_evaluation(config: Config, mesh: jax.sharding.Mesh, batch: tuple[str, ...] = BATCH) -> None:
    """Makes the checks that evaluation needs too; `batch` are the axes of the mesh that split batches."""
    axes, across = sharding.named(batch), sharding.parts(mesh, batch)
    if across % jax.process_count():
        raise UsageError(
            f"{axes} = {across} does not divide over {jax.process_count()} processes; "
            "make it a multiple, since each process reads its own part of the batch."
        )
    if not sharding.reads_its_own(mesh, batch):
        raise UsageError(
            "mesh.tensor reaches over several processes, but each process reads its own part of the batch; make "
            "mesh.tensor smaller."
        )
    tensor = mesh.shape["tensor"]
    sharding.check_divisible(
        {
            "data.eval_batch_size": (config.data.eval_batch_size, axes, across),
            **{field: (size, "mesh.tensor", tensor) for field, size in config.model.split_by_tensor().items()},
        }
    )
