"""Loading what a run has learned: its config and its parameters."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from attention.errors import UsageError
from models.surgery import low_rank
from train import tasks
from train.config import schema
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.tasks.task import Task


def config_of(directory: Path, task: str, purpose: str) -> schema.Config:
    """Reads a run's config; raises a UsageError, which names the purpose, where its task is another one."""
    config = workdir.load_config(directory)
    if config.task != task:
        raise UsageError(f"{directory} is a run of {config.task}; only models of {task} {purpose}.")
    return config


def load(directory: Path, step: str) -> tuple[Task, dict]:
    """Loads a run's task, with the data that it was trained on, and its parameters; see `load_params`."""
    config = workdir.load_config(directory)
    task = tasks.of(config)
    workdir.check_files(task.files(), directory)
    return task, load_params(directory, step, config, task.init_model, {})[1]


def key_of(seed: int) -> jax.Array:
    """Makes the key of a seed; raises a UsageError where JAX would silently use another seed."""
    if not 0 <= seed < 2**32:
        raise UsageError(f"--seed must be at least 0 and below 2**32, but it is {seed}.")
    return jax.random.key(seed)


def load_model(
    directory: Path,
    step: str,
    replica: int,
    config: schema.Config,
    sizes: Sequence[Any],
    example: Sequence[np.ndarray | None],
    vocabularies: Mapping[str, tuple[str, int]],
) -> tuple[nn.Module, dict]:
    """Builds a run's model from its sizes, without its data, and loads its parameters; see `load_params`."""
    model = config.model.build(*sizes, dtype=jnp.dtype(config.train.precision))

    def init(key: jax.Array) -> dict:
        return model.init(key, *jax.tree.map(jnp.asarray, example))["params"]

    return model, load_params(directory, step, config, init, vocabularies, replica)[1]


def load_params(
    directory: Path,
    step: str,
    config: schema.Config,
    init: Callable[[jax.Array], dict],
    vocabularies: Mapping[str, tuple[str, int]],
    replica: int = 0,
    mesh: Mesh | None = None,
) -> tuple[int, dict]:
    """Loads the parameters with which a replica is evaluated, low-rank additions merged, and the step's number.

    Args:
      step: `best` (of a finished run), `last`, or a step that has a checkpoint.
      init: Draws initial parameters; only their shapes are used.
      vocabularies: The file and the size of the tokeniser that each embedding must fit.
      mesh: The devices that hold the parameters; by default the first one.
    """
    replicas = Replicas.of(config, mesh or sharding.make_mesh(schema.MeshConfig(1, 1, 1), jax.local_devices()[:1]))
    if replica not in range(len(replicas)):
        raise UsageError(
            f"--replica={replica} is not one of this run's: train.replicas={len(replicas)}, so give 0"
            + (f" to {len(replicas) - 1}." if len(replicas) > 1 else ".")
        )
    lora = low_rank.parse(config.optimizer.lora)
    shapes = jax.eval_shape(lambda key: lora.added(init(key), key) if lora else init(key), jax.random.key(0))
    abstract = replicas.abstract(shapes)
    with Checkpoints(directory, config.train.keep) as checkpoints:
        chosen = checkpoints.choose(step, replica)
        there = checkpoints.shapes(chosen) if vocabularies else {}
        for name, (file, size) in vocabularies.items():
            trained = there.get(f"{name}/embedding", (size, 0))[-2]  # a missing one cannot be loaded below
            if trained != size:
                raise UsageError(
                    f"{directory / file} has {size} tokens, but the parameters of step {chosen} are for {trained}; put "
                    "back the tokeniser that they were trained with."
                )
        params = checkpoints.load_params(chosen, abstract, averaged=config.train.ema > 0)
        one = replicas.one(params, replica)
        return chosen, lora.merged(one) if lora else one
