"""What short trainings in bfloat16 and in float32 reach on test data, as a mean over seeds.

    python -m studies.precision --runs=runs/precision --out=benchmarks/results/precision_cpu.json

Trains what has no result yet, a process for each CPU at a time. Stopped at any moment, it goes on where it was.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from analysis.tables import plain_markdown
from studies import runs
from train import cli
from train.config.schema import PRECISIONS
from train.run import workdir


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained in each precision.

    Attributes:
      config: Its file.
      metric: What is compared, on test data after the last step.
      overrides: Flags that make it short.
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


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs/precision"), help="where the work directories are")
    made.add_argument("--seeds", type=cli.count, default=3, help="of each, from 0 on")
    made.add_argument("--out", type=cli.new_file, help="where the JSON goes")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(flags: argparse.Namespace) -> None:
    """Trains, prints a table and writes JSON."""
    found = measured(flags.runs, range(flags.seeds))
    print(markdown(found))
    if flags.out:
        command = " ".join(["python -m studies.precision", *sys.argv[1:]])
        header = {"command": command, "cpus": os.cpu_count(), "machine": platform.machine()} | workdir.environment()
        flags.out.write_text(json.dumps(header | {"reached": found}, indent=2) + "\n")


def measured(folder: Path, seeds: range) -> dict[str, dict[str, list[float]]]:
    """What every training reaches with each seed, by training and precision.

    Args:
      folder: Where the work directories are.
      seeds: Of each training.
    """
    places = {
        (name, precision, seed): folder / f"{name}-{precision}-{seed}"
        for name in TRAININGS
        for seed in seeds
        for precision in PRECISIONS
    }
    todo = {place: _flags(*what) for what, place in places.items()}
    runs.train_all(todo, lambda result: f"{result['seconds']:.0f} s")
    return {
        name: {precision: [_reached(name, places[name, precision, s]) for s in seeds] for precision in PRECISIONS}
        for name in TRAININGS
    }


def _flags(name: str, precision: str, seed: int) -> tuple[str, ...]:
    training = TRAININGS[name]
    chosen = (f"--config=configs/{training.config}.py", f"--config.train.precision={precision}")
    return (*chosen, f"--config.seed={seed}", *training.overrides)


def _reached(name: str, workdir: Path) -> float:
    return runs.result(workdir)["final"]["test"][TRAININGS[name].metric]


def markdown(found: dict[str, dict[str, list[float]]]) -> str:
    """Means, and all seeds."""
    rows = [
        (name, TRAININGS[name].metric, precision, f"{statistics.mean(values):.4f}", *(f"{v:.4f}" for v in values))
        for name, reached in found.items()
        for precision, values in reached.items()
    ]
    seeds = [f"seed {seed}" for seed in range(len(rows[0]) - 4)]
    return plain_markdown(("training", "metric", "precision", "mean", *seeds), rows)


if __name__ == "__main__":
    sys.exit(main())
