"""Evaluate a checkpoint of a run again.

python -m train.evaluate --workdir=runs/super
python -m train.evaluate --workdir=runs/super --step=best --split=validation
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, check_known
from train import cli
from train.mesh import processes


def evaluate(
    directory: Path,
    step: str = "last",
    split: str = "test",
    overrides: Mapping[str, str] | None = None,
    replica: int = 0,
) -> tuple[int, dict[str, float]]:
    """Measures one checkpoint on one split; returns its step and metrics.

    Args:
      directory: The run's work directory.
      step: `last`, `best` (of a finished run) or the number of a step that has a checkpoint.
      split: `train`, `validation` or `test`.
      overrides: New values of config fields that may differ from the run's, such as `mesh.data`.
      replica: The number of the replica.
    """
    import jax

    from train import loading, setup, tasks
    from train.decode import trained
    from train.mesh import memory, sharding
    from train.mesh.replicas import Replicas
    from train.run import workdir
    from train.run.evaluations import Evaluator

    with processes.together():
        config = loading.validate(_config(directory, overrides or {}))
        task = tasks.of(config)
        workdir.check_files(task.files(), directory)
        check_known("split", split, task.sources)
        mesh = sharding.make_mesh(config.mesh)
        setup.check_evaluation(config, mesh)
        setup.check_context(config, task, mesh)
        size = config.data.eval_batch_size
        memory.check({}, size * task.sources[split].example_bytes, {"data.eval_batch_size": size}, mesh)
    with jax.set_mesh(mesh):
        with processes.together():
            chosen, params = trained.load_params(directory, step, config, task.init_model, {}, replica, mesh)
        (measured,), _ = Evaluator(task, Replicas([0], mesh))(split, params)
        return chosen, measured.metrics


def _config(directory: Path, overrides: Mapping[str, str]) -> dict[str, Any]:
    from ml_collections import ConfigDict

    from train import loading
    from train.loading.leaves import CHANGEABLE
    from train.run import workdir

    plain = ConfigDict(workdir.read_config(directory)).lock()
    for field, text in overrides.items():
        if field not in CHANGEABLE:
            raise UsageError(
                f"--config.{field} is what the run was trained with; only {', '.join(sorted(CHANGEABLE))} may differ."
            )
        loading.override(plain, field, text)
    return plain.to_dict()


def parser() -> cli.Parser:
    """Makes the parser of the flags; `processes.join` reads others."""
    made = cli.Parser(__doc__)
    made.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the run's folder")
    made.add_argument("--step", default="last", help="last, best or the number of a step with a checkpoint")
    made.add_argument("--split", default="test", help="the data: train, validation or test")
    made.add_argument("--replica", type=int, help="number of a replica; default all")
    cli.CODE(made)
    made.add_overrides()
    return made


def _run(arguments: Sequence[str]) -> None:
    with processes.ending_alone():
        own = processes.join(arguments)
        with processes.together():
            flags = parser().parse_args(own)
            from train.mesh import compilation  # only now, so that --help is fast
            from train.run import workdir

            replicas = range(workdir.load_config(flags.workdir).train.together)
        compilation.keep_programs()
        for replica in replicas if flags.replica is None else [flags.replica]:
            step, metrics = evaluate(flags.workdir, flags.step, flags.split, flags.overrides, replica)
            whose = f"replica {replica} " if len(replicas) > 1 else ""
            numbers = ", ".join(f"{name} {value:.6g}" for name, value in metrics.items())
            if processes.is_first():
                print(f"{whose}step {step} {flags.split}: {numbers}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return cli.run(lambda: _run(given), processes.is_first)


if __name__ == "__main__":
    sys.exit(main())
