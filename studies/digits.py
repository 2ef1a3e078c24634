"""Every mechanism in the digits ViT, trained with `python -m train.main`, as a table with mean and spread over seeds.

    python -m studies.digits --runs=runs/all-on-digits

Trains what has no result yet, a process for each CPU at a time, writes `benchmarks/results/digits_cpu.json` and the
table in `docs/mechanisms.md`. Stopped at any moment, it goes on where it was.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from analysis.tables import plain_markdown
from attention.errors import UsageError
from models import mechanisms
from studies import runs
from train import cli
from train.grids import pool

DOCS = runs.ROOT / "docs/mechanisms.md"
KEPT = ("seed", "best", "best_step", "steps", "parameters", "git")
ROWS = tuple(name for name, row in mechanisms.MECHANISMS.items() if row.score.cross)  # an encoder's mask is not causal
# Beside the rows of the table: what the papers used, or what design choices are worth a look.
VARIANTS = ("neural(dim=16)", "neural(dim=None)", "gaussian(sigma=0.05)", "linear(feature='identity', normalise=False)")


@cli.program(
    __doc__,
    cli.flag("--runs", type=Path, default=Path("runs/all-on-digits"), help="where the work directories are"),
    cli.flag("--seeds", type=cli.count, default=3, help="of each, from 0 on"),
    cli.flag("--only", nargs="*", default=[*ROWS, *VARIANTS], help="spec strings"),
)
def main(flags: argparse.Namespace) -> None:
    """Trains, then writes both files.

    Raises:
      UsageError: a mechanism that is none, or nothing that has finished.
    """
    for spec in flags.only:
        mechanisms.resolve(spec, 1)
    todo = {
        folder(spec, seed, flags.runs): (f"--config.model.attention={spec}", f"--config.seed={seed}")
        for seed in range(flags.seeds)
        for spec in flags.only
    }
    runs.train_all(todo, lambda result: f"{100 * result['best']['test']['accuracy']:.2f} %")
    done = {spec: results(spec, flags.runs) for spec in [*ROWS, *VARIANTS]}
    finished = {spec: found for spec, found in done.items() if found}
    if not finished:
        raise UsageError(f"Nothing has finished in {flags.runs}; the logs there say why.")
    about = {"command": "python -m studies.digits"}
    about["each"] = "python -m train.main --config.model.attention=SPEC --config.seed=SEED, one CPU a run"
    kept = {spec: [{key: run[key] for key in KEPT} for run in found] for spec, found in finished.items()}
    runs.write("digits", about, next(iter(finished.values()))[0], kept)
    runs.put(DOCS, "digits", table(finished))


def folder(spec: str, seed: int, path: Path) -> Path:
    """The work directory of one run."""
    return path / f"{pool.name_of(spec)}-{seed}"


def results(spec: str, path: Path) -> list[dict[str, Any]]:
    """What each finished seed of one mechanism reached."""
    found = {seed: runs.result(folder(spec, seed, path)) for seed in range(100)}
    return [{"seed": seed} | result for seed, result in found.items() if result]


def table(done: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: test accuracy at the best validation step, mean and range over seeds, parameters."""
    rows = []
    for spec, found in done.items():
        accuracies = [100 * run["best"]["test"]["accuracy"] for run in found]
        spread = f"{min(accuracies):.2f} – {max(accuracies):.2f}"
        parameters = f"{found[0]['parameters']:,}"
        rows.append((f"`{spec}`", f"{statistics.mean(accuracies):.2f}", spread, len(found), parameters))
    return plain_markdown(("mechanism", "test accuracy, %", "lowest – highest", "seeds", "parameters"), rows)


if __name__ == "__main__":
    sys.exit(main())
