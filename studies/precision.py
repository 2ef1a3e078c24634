"""Compare the test results of short trainings in bfloat16 and in float32, as means over seeds.

    python -m studies.precision --runs=runs/precision --out=benchmarks/results/precision_cpu.json

Only runs without a result are trained, one process on each CPU. You can stop the program at any moment; the same
command continues.
"""

import argparse
import dataclasses
import statistics
import sys
from pathlib import Path

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError
from studies import runs
from train import cli
from train.cli.files import write_json
from train.config.schema import PRECISIONS
from train.grids import pool


@dataclasses.dataclass(frozen=True)
class Training:
    """A training that is done in each precision.

    Attributes:
      config: The config file's name.
      metric: The compared metric of test data after the last step.
      overrides: Flags that shorten the training.
    """

    config: str
    metric: str
    overrides: tuple[str, ...]


RARELY = ("--config.train.eval_every=0 steps", "--config.train.checkpoint_every=0 steps")
SMALLER = ("--config.model.depth=2", "--config.model.width=64", "--config.model.mlp=256")
TRAININGS = {
    "digits": Training("vit_digits", "accuracy", ("--config.train.length=300 steps", "--config.train.ema=0", *RARELY)),
    "pydoc": Training("gpt_pydoc", "bits_per_byte", ("--config.train.length=200 steps", *SMALLER, *RARELY)),
}


@cli.program(
    __doc__,
    cli.flag("--runs", type=Path, default=Path("runs/precision"), help="folder of the work directories"),
    cli.flag("--seeds", type=cli.count, default=3, help="number of seeds per setting, counted from 0"),
    measurements.OUT,
    lasting=True,
)
def main(flags: argparse.Namespace) -> None:
    """Trains, prints a table and writes JSON."""
    found = measured(flags.runs, range(flags.seeds))
    print(markdown(found))
    if flags.out:  # last, since it starts JAX, and each training needs a whole accelerator
        header = measurements.header("python -m studies.precision")
        write_json(flags.out, header | {"reached": found})


def measured(folder: Path, seeds: range) -> dict[str, dict[str, list[float]]]:
    """Trains with each seed, and collects the metric's values by training and precision.

    Raises:
      UsageError: A run has not finished.
    """
    places = {
        (name, precision, seed): folder / f"{name}-{precision}-{seed}"
        for name in TRAININGS
        for seed in seeds
        for precision in PRECISIONS
    }
    todo = {
        place: (
            f"--config=configs/{TRAININGS[name].config}.py",
            f"--config.train.precision={precision}",
            f"--config.seed={seed}",
            *TRAININGS[name].overrides,
        )
        for (name, precision, seed), place in places.items()
    }
    runs.train_all(todo, lambda result: f"{result['seconds']:.0f} s")
    reached: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in PRECISIONS} for name in TRAININGS}
    for (name, precision, _), place in places.items():
        result = runs.result(place)
        if result is None:
            raise UsageError(f"{place} has not finished; see {pool.log_of(place)}, then give the same command again.")
        reached[name][precision].append(result["final"]["test"][TRAININGS[name].metric])
    return reached


def markdown(found: dict[str, dict[str, list[float]]]) -> str:
    """Tabulates the means and all seeds."""
    rows = [
        (name, TRAININGS[name].metric, precision, f"{statistics.mean(values):.4f}", *(f"{v:.4f}" for v in values))
        for name, reached in found.items()
        for precision, values in reached.items()
    ]
    seeds = [f"seed {seed}" for seed in range(len(rows[0]) - 4)]
    return plain_markdown(("training", "metric", "precision", "mean", *seeds), rows)


if __name__ == "__main__":
    sys.exit(main())
