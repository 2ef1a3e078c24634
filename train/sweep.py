"""A grid of runs, each setting with several seeds.

python -m train.sweep --config=configs/vit_digits.py --over model.attention=dot_product,super --seeds=5 --workdir=runs/a
python -m train.sweep --config=configs/vit_digits.py --over "model.attention=neural(dim=2)|dot_product,super" \
    --over=optimizer.learning_rate=1e-3,3e-3 --equal=parameters --workdir=runs/b
python -m train.sweep --config=configs/vit_mnist.py --over argument=dot_product,super --workdir=runs/c --print

Commas inside brackets and quotes do not split. --over argument=A,B gives the config file its argument. The same
command again continues; with more values or seeds it extends the sweep.
"""

import argparse
import ast
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train import cli
from train.grids import grid, matching, pool
from train.grids.grid import Sweep
from train.grids.matching import Prepared
from train.run.progress import numbers_text
from train.run.workdir import read_result

REPLICAS = ("auto", "yes", "no")


def run(arguments: Sequence[str]) -> int:
    """Plans, and trains, prints or hands over what is left; returns the exit code.

    Raises:
      UsageError: any mistake in the arguments, before anything is trained.
    """
    flags = parser().parse_args(arguments)
    overrides = flags.overrides
    if "train.replicas" in overrides:
        raise UsageError("--config.train.replicas cannot be: --replicas decides it.")
    over = grid.over(flags.over, overrides, flags.equal)
    before = grid.read(flags.workdir)
    sweep, prepared = _plan(flags, Sweep(flags.config, overrides, over, [], flags.equal), before)
    todo = runs(sweep, prepared, flags.workdir)
    grid.write(flags.workdir, _record(sweep, prepared))
    left = {path: own for path, own in todo.items() if not pool.is_finished(path)}
    if flags.print:
        for path, own in left.items():
            print(shlex.join(["python", "-m", "train.main", *own, f"--workdir={path}"]))
        return 0
    for line in _chosen(sweep, prepared):
        print(line)
    if flags.slurm is not None:
        return hand_over(left, flags.workdir, flags.slurm)
    return train(todo, flags.jobs or (0 if prepared.platform == "cpu" else 1), flags.workdir)


def runs(sweep: Sweep, prepared: Prepared, directory: Path) -> dict[Path, list[str]]:
    """From the work directory of each run to its flags."""
    found: dict[Path, list[str]] = {}
    for cell, chosen in zip(sweep.cells.values(), prepared.chosen, strict=True):
        fields = {**cell.overrides, **chosen}
        for seeds in sweep.seeds:
            together = {"train.replicas": str(len(seeds))} if len(seeds) > 1 else {}
            values = fields | {"seed": str(seeds[0])} | together
            path = directory / cell.name / grid.run_name(seeds)
            found[path] = [f"--config={cell.spec}", *(f"--config.{field}={text}" for field, text in values.items())]
    return found


def train(todo: Mapping[Path, Sequence[str]], jobs: int, directory: Path) -> int:
    """Trains what is left, says how each run ended, and sums up; returns the exit code."""
    ended: list[Path] = []

    def say(path: Path, outcome: str) -> None:
        ended.append(path)
        print(f"[{len(ended)}/{len(todo)}] {path.relative_to(directory)}: {_result(path, outcome)}", flush=True)

    outcomes = pool.run_all({path: pool.command(own, path) for path, own in todo.items()}, jobs, say)
    counts = {kind: sum(outcome == kind for outcome in outcomes.values()) for kind in (pool.FINISHED, pool.FAILED)}
    print(f"{counts[pool.FINISHED]} of {len(todo)} runs have finished, {counts[pool.FAILED]} failed.")
    if counts[pool.FINISHED] < len(todo):
        print("The same command continues; what has finished is not trained again.")
    if counts[pool.FINISHED]:
        print(f"python -m analysis.report {directory} makes tables of what has finished.")
    return int(counts[pool.FAILED] > 0)


def hand_over(left: Mapping[Path, Sequence[str]], directory: Path, options: str) -> int:
    """Submits the runs as one array of SLURM jobs.

    Args:
      left: The runs.
      directory: Of the sweep; what the jobs print goes to `slurm/` in it.
      options: `NAME=VALUE,NAME=VALUE` of submitit's `AutoExecutor.update_parameters`.

    Raises:
      UsageError: submitit is not there or knows no such option.
    """
    try:
        import submitit
    except ImportError as error:
        raise UsageError(
            "--slurm needs submitit, which is not installed: pip install submitit, or use --print."
        ) from error
    pairs = [option.partition("=") for option in (grid.split(options) if options else ())]
    executor = submitit.AutoExecutor(folder=directory / "slurm")
    try:
        executor.update_parameters(**{name: _literal(value) for name, _, value in pairs})
    except (TypeError, NameError, ValueError) as error:
        raise UsageError(f"--slurm={options} is not what submitit takes: {error}.") from error
    todo = [pool.command(own, path) for path, own in left.items()]
    jobs = executor.map_array(subprocess.check_call, todo) if todo else []
    print(f"Submitted {len(jobs)} jobs{f', {jobs[0].job_id} the first' if jobs else ''}.")
    return 0


def _plan(flags: argparse.Namespace, sweep: Sweep, before: Mapping[str, Any] | None) -> tuple[Sweep, Prepared]:
    """The sweep with its seeds, checked, and what was chosen of its configs: what was chosen before stays."""
    cells = sweep.cells
    if before:
        grid.check_extends(before, sweep, flags.workdir)
    known = {name: cell["chosen"] for name, cell in before["cells"].items()} if before else {}
    index = {values: number for number, values in enumerate(cells)}
    requests = [cell.but(known.get(cell.name, {})) for cell in cells.values()]
    baselines = [
        index[values if cell.name in known or not flags.equal else sweep.baseline(values)]
        for values, cell in cells.items()
    ]
    prepared = matching.apart(matching.prepare, requests, baselines, flags.equal, flags.seeds, flags.replicas)
    chosen = tuple(
        {**known.get(cell.name, {}), **new} for cell, new in zip(cells.values(), prepared.chosen, strict=True)
    )
    seeds = grid.seeds(before["seeds"] if before else [], prepared.seed, flags.seeds, prepared.together, flags.workdir)
    return dataclasses.replace(sweep, seeds=seeds), dataclasses.replace(prepared, chosen=chosen)


def _record(sweep: Sweep, prepared: Prepared) -> dict[str, Any]:
    """What is written of a sweep."""
    cells = {
        cell.name: {"chosen": chosen} | ({sweep.equal: size} if sweep.equal else {})
        for cell, chosen, size in zip(sweep.cells.values(), prepared.chosen, prepared.sizes, strict=True)
    }
    return dataclasses.asdict(sweep) | {"cells": cells}


def _chosen(sweep: Sweep, prepared: Prepared) -> list[str]:
    """A line for each setting that was matched with its baseline."""
    cells = sweep.cells
    sizes = dict(zip(cells, prepared.sizes, strict=True))
    lines = []
    for (values, cell), chosen in zip(cells.items(), prepared.chosen, strict=True):
        if chosen:
            choice = ", ".join(f"{field} {text}" for field, text in chosen.items())
            share = sizes[values] / sizes[sweep.baseline(values)] - 1
            lines.append(f"{cell.name}: {choice}: {sizes[values]:,} {sweep.equal}, {share:+.2%} of the baseline's")
    return lines


def _result(path: Path, outcome: str) -> str:
    """How a run ended."""
    if outcome == pool.FAILED:
        lines = pool.log_of(path).read_text(encoding="utf-8", errors="replace").splitlines()
        return f"failed, see {pool.log_of(path)}: {lines[-1] if lines else 'it printed nothing'}"
    if outcome == pool.STOPPED:
        return "stopped and saved"
    result = read_result(path)
    return numbers_text(result.get("mean", result)["best"]["test"])  # `mean` is of seeds that were trained together


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("--config", required=True, metavar="FILE[:ARGUMENT]", help="the experiment")
    made.add_overrides()
    made.add_argument("--workdir", type=Path, required=True, metavar="DIR", help="the folder of the sweep")
    made.add_argument(
        "--over", action="append", default=[], metavar="FIELD=VALUE,VALUE", help="what varies; may be given again"
    )
    made.add_argument("--seeds", type=cli.count, default=1, help="of each setting, from the config's on")
    made.add_argument(
        "--jobs",
        type=cli.count,
        default=0,
        help="runs at a time; without it one a CPU, or one where there is a GPU",
    )
    made.add_argument(
        "--replicas", default="auto", choices=REPLICAS, help="train seeds together: auto does unless on CPUs"
    )
    made.add_argument("--equal", default="", choices=matching.EQUAL, help="match with the first value")
    made.add_argument("--print", action="store_true", help="print one command a run, and train nothing")
    made.add_argument("--slurm", nargs="?", const="", metavar="NAME=VALUE,...", help="submit the runs with submitit")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code: 0 done or saved, 1 a run failed, 2 a mistake, 130 stopped at once."""
    return cli.run(lambda: run(sys.argv[1:] if arguments is None else arguments))  # Ctrl-C is heard while runs train


if __name__ == "__main__":
    sys.exit(main())
