"""Evaluate a checkpoint of a run again.

python -m train.evaluate --workdir=runs/super --step=best --split=test
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from attention.errors import UsageError, unknown
from train import compilation, configs, distributed, loop, sharding, tasks, workdir
from train.checkpoints import Checkpoints
from train.main import parse


def evaluate(
    directory: Path, step: str = "last", split: str = "test", overrides: Mapping[str, str] | None = None
) -> tuple[int, dict[str, float]]:
    """Metrics of one checkpoint on one split.

    Args:
      directory: The work directory of a run.
      step: `last`, `best` (needs a finished run) or a step that has a checkpoint.
      split: `train`, `validation` or `test`.
      overrides: Fields of the config that may differ from the run's, such as `mesh.data` or `data.data_dir`.

    Returns:
      The step and its metrics.

    Raises:
      UsageError: no such run, checkpoint or split, or data that give another tokeniser than the run's.
    """
    with distributed.together():
        config = configs.validate(_config(directory, overrides or {}))
        task = tasks.find(config.task)(config)
        workdir.check_files(task.files(), directory)
        if split not in task.sources:
            raise unknown("split", split, task.sources)
        mesh = sharding.make_mesh(config.mesh)
        loop.check_splits(config, mesh)
    with jax.set_mesh(mesh), Checkpoints(directory, config.train.keep) as checkpoints:
        with distributed.together():
            chosen = checkpoints.choose(step, lambda: workdir.read_result(directory)["best_step"])
        shapes = jax.eval_shape(task.init, jax.random.key(0))
        abstract = jax.tree.map(lambda x, s: x.update(sharding=s), shapes, sharding.state_shardings(shapes, mesh))
        params = checkpoints.load_params(chosen, abstract, averaged=config.train.ema > 0)
        eval_step = jax.jit(lambda params, batch: task.loss(params, batch, None))
        return chosen, loop.evaluate(task, split, eval_step, params, mesh)


def _config(directory: Path, overrides: Mapping[str, str]) -> dict[str, Any]:
    plain = ConfigDict(workdir.read_config(directory)).lock()
    for field, text in overrides.items():
        if not field.startswith(workdir.MAY_CHANGE):
            raise UsageError(
                f"--config.{field} is part of what the run is; only {', '.join(workdir.MAY_CHANGE)} may differ."
            )
        configs.override(plain, field, text)
    return plain.to_dict()


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m train.evaluate", description="Evaluate a checkpoint of a run.")
    parser.add_argument("--workdir", type=Path, required=True, help="the run's folder")
    parser.add_argument("--step", default="last", help="last, best or a step that has a checkpoint")
    parser.add_argument("--split", default="test", help="train, validation or test")
    flags, rest = parser.parse_known_args(arguments)

    def program() -> None:
        overrides = parse(distributed.join(rest))[1]
        compilation.keep_programs()
        step, metrics = evaluate(flags.workdir, flags.step, flags.split, overrides)
        if distributed.is_first():
            numbers = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            print(f"step {step} {flags.split}: {numbers}")

    return distributed.exit_code(program)


if __name__ == "__main__":
    sys.exit(main())
