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
    count, axes = sharding.divisor(replicas.mesh, replicas.batch_axes)
    sizes = {"data.batch_size": config.data.batch_size}
    sharding.check_divisible(sizes, count * config.train.accumulate, f"{axes} x train.accumulate")


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
            "mesh.tensor smaller."
        )
    sharding.check_divisible({"data.eval_batch_size": config.data.eval_batch_size}, count, axes)
    sharding.check_divisible(config.model.split_by_tensor(), mesh.shape["tensor"], "mesh.tensor")
