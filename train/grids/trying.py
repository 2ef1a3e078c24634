"""Trials from their flags to their table: which cells are asked for, trained, and shown beside others."""

import argparse
import dataclasses
import itertools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention import specs
from attention.errors import UsageError, check_known
from models.fields import LAYERS
from models.mechanisms import resolve
from train import cli
from train.data.trials.sizes import CPU, PUBLISHED
from train.grids import cells, matching, pool, running
from train.grids.cells import Cell, Choice
from train.grids.trial_table import FIRST, TrialTable, check_alike, is_alike
from train.loading import PACKAGE
from train.run import console

LONGEST = 200  # letters of a folder
KEPT = PACKAGE / "configs/trials.json"  # what was measured of all mechanisms
BASELINES = ("dot_product", "linear", "gated_delta", "state_space")  # of those, what is printed beside


@dataclasses.dataclass(frozen=True)
class Asked:
    """The cells of a table, and how they are made."""

    cells: Sequence[Cell]
    choice: Choice
    seeds: int  # that are tested
    directory: Path
    jobs: int = 0  # runs at a time, 0 is as many as suit the machine

    @classmethod
    def of(cls, flags: argparse.Namespace) -> "Asked":
        """Reads which cells the flags ask for; raises a UsageError where they have a mistake."""
        if not flags.specs:
            raise UsageError('Which mechanisms are tried? Name some, such as delta or "neural(dim=2)".')
        if flags.out or (flags.all and flags.only):
            raise UsageError("--out is for --merge, and --all is without --only; leave one out.")
        named = dict.fromkeys(str(specs.pattern(spec)) for spec in flags.specs)  # however they were spaced
        known = PUBLISHED if flags.full else CPU
        trials = flags.only or (known if flags.all else FIRST)
        for spec in named:
            resolve(spec, LAYERS)  # a slip of the pen; what a trial's frame cannot have is the cell's reason
        names = {pool.name_of(spec): spec for spec in named}
        if len(names) < len(named) or max(map(len, names)) > LONGEST:
            raise UsageError(
                f"Mechanisms need folders of different names, of at most {LONGEST} letters; write them anew."
            )
        for trial in trials:
            check_known("trial", trial, known)
        directory = flags.workdir or Path("runs/trials_published" if flags.full else "runs/trials")
        pairs = itertools.product(named, dict.fromkeys(trials))
        made = [Cell(trial, spec, directory, flags.full) for spec, trial in pairs]
        choice = Choice(tuple(map(str.strip, flags.rates.split(","))), flags.tuning_seeds)
        return cls(made, choice, flags.seeds, directory, flags.jobs)

    def before(self) -> TrialTable:
        """Reads the cells that the table has beside those that are asked for, which must compare with these."""
        path = self.directory / cells.TABLE
        asked = {(cell.trial, cell.spec) for cell in self.cells}
        table = TrialTable.read(path) if path.is_file() else TrialTable({}, [], [])
        kept = [row for row in table.rows if (row["trial"], row["spec"]) not in asked]
        trials = {row["trial"]: table.trials[row["trial"]] for row in kept if "reason" not in row}
        for cell in self.cells:
            if cell.trial in trials:
                check_alike(cell.trial, trials[cell.trial], {"settings": cell.settings(self.choice)})
        return TrialTable(trials, kept, table.made)


def run(flags: argparse.Namespace) -> int:
    """Trains the cells that are left, and writes and prints the table; or merges tables. Gives 1 where a run failed."""
    if flags.merge:
        return _merge([*flags.merge, *map(Path, flags.specs)], flags.out)
    asked = Asked.of(flags)
    before = asked.before()
    print(f"Checking {len(asked.cells)} cells", flush=True)
    examined = matching.apart(matching.examined, [cell.request for cell in asked.cells])
    possible = [cell for cell, reason in zip(asked.cells, examined.reasons, strict=True) if not reason]
    outcomes = _train(asked, examined, {cell: cell.tuning(asked.choice) for cell in possible})
    if pool.STOPPED not in outcomes.values():
        outcomes = {path: outcome for path, outcome in outcomes.items() if outcome == pool.FAILED}
        tried = {cell: scores for cell in possible if (scores := cell.tried(asked.choice))}
        rates = {cell: cells.best(scores) for cell, scores in tried.items() if not cells.all_diverged(scores)}
        outcomes |= _train(asked, examined, {cell: cell.tested(rate, asked.seeds) for cell, rate in rates.items()})
    reasons, path = zip(asked.cells, examined.reasons, strict=True), asked.directory / cells.TABLE
    ours = (cell.table(asked.choice, asked.seeds, reason) for cell, reason in reasons)  # of what has finished
    table = TrialTable.merged([before, *ours])
    table.write(path)
    print(_beside(table).text())
    _write_page(path)
    print(f"The table is in {path}.")
    return running.sum_up(outcomes, "") if outcomes else cli.DONE


def _train(asked: Asked, examined: matching.Examined, parts: Mapping[Cell, running.Runs]) -> dict[Path, str]:
    """Trains runs of cells, and prints the line of each cell whose tested seeds have finished."""
    runs = {path: run_flags for cell, part in parts.items() for path, run_flags in cell.left(part).items()}
    if not runs:
        return {}
    cell_of = {path: cell for cell, part in parts.items() for path in part}
    on_cpu = examined.platform == "cpu"  # which trains one on each core faster than several in one program

    def show(path: Path) -> None:
        table = cell_of[path].table(asked.choice, asked.seeds, "")
        if all("reason" not in row for row in table.rows):
            print(table.text(), flush=True)

    jobs = asked.jobs or (0 if on_cpu else 1)
    outcomes = running.run_all(runs, jobs, 1 if on_cpu else examined.together, asked.directory, show)
    for cell in parts:
        cell.note(outcomes)
    return outcomes


def _beside(table: TrialTable) -> TrialTable:
    """Puts the kept baselines of the same trials behind the cells of a table."""
    kept = TrialTable.read(KEPT)
    rows = [row for row in kept.rows if row["spec"] in BASELINES]
    alike = [trial for trial, of in table.trials.items() if is_alike(trial, of, kept.trials.get(trial))]
    return table.beside(TrialTable(kept.trials, rows, kept.made), alike)


def _write_page(path: Path) -> None:
    """Writes the page, in a process of its own: what trains needs nothing of what draws."""
    subprocess.run([*console.command("analysis.pages"), str(path), str(KEPT)], check=False)


def _merge(paths: Sequence[Path], out: Path | None) -> int:
    if out is None:
        raise UsageError("Where does the joined table go? Give an --out.")
    table = TrialTable.merged([TrialTable.read(path) for path in paths])
    table.write(out)
    print(table.text(), *table.remarks(), f"The table is in {out}.", sep="\n")
    return cli.DONE
