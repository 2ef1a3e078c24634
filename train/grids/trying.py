"""Trials from the command line to their table: which cells are trained, and what they are shown beside."""

import argparse
import itertools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from attention import specs
from attention.errors import UsageError, check_known
from attention.types import Rule, check
from models.fields import LAYERS
from models.mechanisms import resolve
from train import cli
from train.cli.terminal import counted
from train.data.trials.sizes import CPU, PUBLISHED
from train.grids import cells, matching, pool, running, tuning
from train.grids.cells import Cell
from train.grids.trial_table import FIRST, TrialTable, check_alike, difference
from train.loading import PACKAGE
from train.run import console

LONGEST = 200  # characters in a folder's name
KEPT = PACKAGE / "configs/trials.json"  # the results of all mechanisms
BASELINES = ("dot_product", "linear", "gated_delta", "state_space")  # kept cells that every table is printed with
Rates = Annotated[str, Rule("different numbers above 0, such as 1e-3,3e-3", lambda text: _differ(text.split(",")))]


def _differ(rates: Sequence[str]) -> bool:
    numbers = set(map(float, rates))
    return all(0 < number < float("inf") for number in numbers) and len(numbers) == len(rates)


def cells_of(flags: argparse.Namespace) -> list[Cell]:
    """Lists the cells that the flags ask for; raises a UsageError where the flags have a mistake."""
    if not flags.specs:
        raise UsageError('Which mechanisms are tried? Name some, such as delta or "neural(dim=2)".')
    if flags.out or (flags.all and flags.only):
        raise UsageError("--out is for --merge, and --all is without --only; leave one out.")
    named = dict.fromkeys(str(specs.pattern(spec)) for spec in flags.specs)  # spaces make no difference
    known = PUBLISHED if flags.full else CPU
    trials = flags.only or (known if flags.all else FIRST)
    for spec in named:
        resolve(spec, LAYERS)  # finds misspellings; a mechanism that does not fit a trial has the reason in its cell
    folders = set(map(pool.name_of, named))
    if len(folders) < len(named) or max(map(len, folders)) > LONGEST:
        raise UsageError(f"Mechanisms need folders with different names of at most {LONGEST} letters; rewrite them.")
    for trial in trials:
        check_known("trial", trial, known)
    rates = tuple(map(str.strip, flags.rates.split(",")))
    check(Rates, ",".join(rates), "--rates")
    directory = flags.workdir or Path("runs/trials_published" if flags.full else "runs/trials")
    pairs = itertools.product(named, dict.fromkeys(trials))
    return [Cell(trial, spec, directory, rates, flags.tuning_seeds, flags.seeds, flags.full) for spec, trial in pairs]


def before(asked: Sequence[Cell]) -> TrialTable:
    """Reads the table's other cells; raises a UsageError where their settings differ from those of `asked`.

    The settings of trials that have no other cell are left out.
    """
    path = asked[0].directory / cells.TABLE
    table = TrialTable.read(path) if path.is_file() else TrialTable({}, [], [])
    names = {(cell.trial, cell.spec) for cell in asked}
    others = [row for row in table.rows if (row["trial"], row["spec"]) not in names]
    trials = {row["trial"]: table.trials[row["trial"]] for row in others if "reason" not in row}
    for cell in asked:
        if cell.trial in trials:
            check_alike(cell.trial, trials[cell.trial], {"settings": cell.settings()})
    return TrialTable(trials, others, table.made)


def run(flags: argparse.Namespace) -> int:
    """Trains the cells that are left, then writes and prints the table, or merges tables; gives the exit code."""
    if flags.merge:
        return _merge([*flags.merge, *map(Path, flags.specs)], flags.out)
    asked = cells_of(flags)
    others, path = before(asked), asked[0].directory / cells.TABLE
    print(f"Checking {counted(len(asked), 'cell')}", flush=True)
    reasons, jobs, together = matching.in_new_process(matching.examine, [cell.request for cell in asked])
    possible = [cell for cell, reason in zip(asked, reasons, strict=True) if not reason]
    jobs = flags.jobs or jobs
    outcomes = _train({cell: cell.tuning() for cell in possible}, jobs, together)
    if pool.STOPPED not in outcomes.values():
        outcomes = {path: outcome for path, outcome in outcomes.items() if outcome == pool.FAILED}
        tried = {cell: scores for cell in possible if (scores := cell.tried())}
        rates = {cell: cells.best(scores) for cell, scores in tried.items() if not tuning.all_diverged(scores)}
        outcomes |= _train({cell: cell.tested(rate) for cell, rate in rates.items()}, jobs, together)
    table = TrialTable.merged([others, *map(Cell.table, asked, reasons)])
    table.write(path)
    print(_with_baselines(table).text())
    _write_page(path)
    print(f"The table is in {path}.")
    return running.sum_up(outcomes, "") if outcomes else cli.DONE


def _train(parts: Mapping[Cell, running.Runs], jobs: int, together: int) -> dict[Path, str]:
    """Trains runs of cells, and prints the line of each cell whose tested seeds have finished."""
    runs = {path: flags for cell, part in parts.items() for path, flags in cell.left(part).items()}
    if not runs:
        return {}
    cell_of = {path: cell for cell, part in parts.items() for path in part}

    def show(paths: Sequence[Path]) -> None:
        for table in map(Cell.table, dict.fromkeys(cell_of[path] for path in paths)):
            if all("reason" not in row for row in table.rows):
                print(table.text(), flush=True)

    directory = next(iter(parts)).directory
    outcomes = running.run_all(runs, jobs, together, directory, show)
    for cell in parts:
        cell.note(outcomes)
    return outcomes


def _with_baselines(table: TrialTable) -> TrialTable:
    """Appends the kept baselines, in trials that were made with the same settings."""
    kept = TrialTable.read(KEPT)
    rows = [row for row in kept.rows if row["spec"] in BASELINES]
    common = table.trials.keys() & kept.trials.keys()
    alike = {name for name in common if not difference(table.trials[name], kept.trials[name])}
    return table.beside(TrialTable(kept.trials, rows, kept.made), alike)


def _write_page(path: Path) -> None:
    """Writes the page in a process of its own, since training needs none of the libraries that draw."""
    subprocess.run([*console.command("analysis.pages"), str(path), str(KEPT)], check=False)


def _merge(paths: Sequence[Path], out: Path | None) -> int:
    if out is None:
        raise UsageError("Where does the merged table go? Give an --out.")
    table = TrialTable.merged([TrialTable.read(path) for path in paths])
    table.write(out)
    print(table.text(), *table.remarks(), f"The table is in {out}.", sep="\n")
    return cli.DONE
