"""Every mechanism in the digits ViT, trained with `python -m train.main`, as a table with mean and spread over seeds.

    python -m studies.digits --runs=runs/all-on-digits

Trains what has no result yet, a process for each CPU at a time, writes `benchmarks/results/digits_cpu.json` and the
table in `docs/mechanisms.md`. Stopped at any moment, it goes on where it was.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from models import mechanisms
from models.mechanisms import MECHANISMS
from studies import runs
from train import cli
from train.grids import pool

RESULT = runs.ROOT / "benchmarks/results/digits_cpu.json"
DOCS = runs.ROOT / "docs/mechanisms.md"
# Beside the rows of the table: what the papers used, or what design choices are worth a look.
VARIANTS = ("neural(dim=16)", "neural(dim=None)", "gaussian(sigma=0.05)", "linear(feature='identity', normalise=False)")


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("--runs", type=Path, default=Path("runs/all-on-digits"), help="where the work directories are")
    made.add_argument("--seeds", type=cli.count, default=3, help="of each, from 0 on")
    made.add_argument("--only", nargs="*", default=[*MECHANISMS, *VARIANTS], help="spec strings")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: run(parser().parse_args(arguments)))


def run(arguments: argparse.Namespace) -> None:
    """Trains, then writes both files.

    Raises:
      UsageError: a mechanism that is none, or nothing that has finished.
    """
    for spec in arguments.only:
        mechanisms.resolve(spec, 1)
    todo = {
        folder(spec, seed, arguments.runs): (f"--config.model.attention={spec}", f"--config.seed={seed}")
        for seed in range(arguments.seeds)
        for spec in arguments.only
    }
    runs.train_all(todo, lambda result: f"{100 * result['best']['test']['accuracy']:.2f} %")
    done = {spec: results(spec, arguments.runs) for spec in [*MECHANISMS, *VARIANTS]}
    finished = {spec: found for spec, found in done.items() if found}
    if not finished:
        raise UsageError(f"Nothing has finished in {arguments.runs}; the logs there say why.")
    write(finished)


def folder(spec: str, seed: int, path: Path) -> Path:
    """The work directory of one run."""
    return path / f"{pool.name_of(spec)}-{seed}"


def results(spec: str, path: Path) -> list[dict[str, Any]]:
    """What each finished seed of one mechanism reached."""
    found = {seed: runs.result(folder(spec, seed, path)) for seed in range(100)}
    return [{"seed": seed} | result for seed, result in found.items() if result]


def write(done: dict[str, list[dict[str, Any]]]) -> None:
    """The JSON with all figures, and the table between the marks in the docs."""
    some = next(iter(done.values()))[0]
    kept = ("seed", "best", "best_step", "steps", "parameters", "git")
    record = {
        "command": "python -m studies.digits",
        "each": "python -m train.main --config.model.attention=SPEC --config.seed=SEED, one CPU a run",
        "versions": some["versions"],
        "devices": some["devices"],
        "runs": {spec: [{key: run[key] for key in kept} for run in found] for spec, found in done.items()},
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    runs.put(DOCS, "digits", table(done))


def table(done: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: test accuracy at the best validation step, mean and range over seeds, parameters."""
    lines = ["| mechanism | test accuracy, % | lowest – highest | seeds | parameters |", "| --- " * 5 + "|"]
    for spec, found in done.items():
        accuracies = [100 * run["best"]["test"]["accuracy"] for run in found]
        spread = f"{min(accuracies):.2f} – {max(accuracies):.2f}"
        mean = statistics.mean(accuracies)
        lines.append(f"| `{spec}` | {mean:.2f} | {spread} | {len(found)} | {found[0]['parameters']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
