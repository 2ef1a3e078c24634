"""Try what mechanisms can do, on small tasks made for it: recall, copying, selection, following a state.

python -m train.trials "neural(dim=2)" delta --workdir=runs/trials
python -m train.trials "gated_delta|dot_product" --only=parity --only=selective --seeds=8 --workdir=runs/trials
python -m train.trials --merge=mine.json theirs.json --out=ours.json

Every mechanism has the same frame, and the same learning rates to choose from, on seeds that are not tested. The same
command continues what was stopped. `docs/trials.md` says what the trials are.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention.errors import UsageError, check_known
from models.fields import LAYERS
from models.mechanisms import resolve
from train import cli
from train.grids import cells, matching, pool, running
from train.grids.cells import Cell, Choice, TrialTable

FIRST = ("stacked", "parity", "selective")
LONGEST = 200  # letters of a folder
RATES = "1e-3,3e-3,1e-2"
SEVERAL = {"action": "append", "default": []}


@dataclasses.dataclass(frozen=True)
class Asked:
    """The cells of a table, and how they are made."""

    cells: Sequence[Cell]
    choice: Choice
    seeds: int  # that are tested
    directory: Path

    @classmethod
    def of(cls, flags: argparse.Namespace) -> "Asked":
        """Reads which cells the flags ask for; raises a UsageError where they have a mistake."""
        if not flags.specs:
            raise UsageError('Which mechanisms are tried? Name some, such as delta or "neural(dim=2)".')
        if flags.workdir is None:
            raise UsageError("Where do the runs go? Give a --workdir, such as runs/trials.")
        if flags.out or (flags.all and flags.only):
            raise UsageError("--out is for --merge, and --all is without --only; leave one out.")
        specs, trials = dict.fromkeys(flags.specs), flags.only or (cells.known() if flags.all else FIRST)
        for spec in specs:
            resolve(spec, LAYERS)  # a slip of the pen; what a trial's frame cannot have is the cell's reason
        names = {pool.name_of(spec): spec for spec in specs}
        if len(names) < len(specs) or max(map(len, names)) > LONGEST:
            raise UsageError(
                f"Mechanisms need folders of different names, of at most {LONGEST} letters; write them anew."
            )
        for trial in trials:
            check_known("trial", trial, cells.known())
        made = [Cell(trial, spec, flags.workdir) for spec, trial in itertools.product(specs, dict.fromkeys(trials))]
        return cls(made, Choice(tuple(flags.rates.split(",")), flags.tuning_seeds), flags.seeds, flags.workdir)

    def before(self) -> TrialTable:
        """Reads the cells that the table has beside those that are asked for.

        Raises:
          UsageError: their rates were chosen otherwise.
        """
        path = self.directory / cells.TABLE
        table = TrialTable.read(path).without(self.cells) if path.is_file() else TrialTable([], [])
        choice = {"rates": list(self.choice.rates), "seeds": self.choice.seeds}
        for row in table.rows:
            if "reason" not in row and row["settings"]["choice"] != choice:
                raise UsageError(
                    f"{path} has cells whose rates were chosen with {row['settings']['choice']}, not {choice}; give "
                    "the same --rates and --tuning-seeds, or another --workdir."
                )
        return table

    def table(self, reasons: Sequence[str], before: TrialTable) -> TrialTable:
        """Makes the table of what has finished."""
        rows = [cell.row(self.choice, self.seeds, reason) for cell, reason in zip(self.cells, reasons, strict=True)]
        ours = TrialTable.of((row for row, _ in rows), (call for _, calls in rows for call in calls))
        return TrialTable.merged([before, ours])


def run(flags: argparse.Namespace) -> int:
    """Trains the cells that are left, and writes and prints the table; or merges tables.

    Returns:
      The exit code: 0 done or saved, 1 a run failed.
    """
    if flags.merge:
        return _merge([*flags.merge, *map(Path, flags.specs)], flags.out)
    asked = Asked.of(flags)
    before = asked.before()
    print(f"Checking {len(asked.cells)} cells", flush=True)
    examined = matching.apart(matching.examined, [cell.request for cell in asked.cells])
    possible = [cell for cell, reason in zip(asked.cells, examined.reasons, strict=True) if not reason]
    jobs = flags.jobs or (0 if examined.platform == "cpu" else 1)

    def train(parts: Mapping[Cell, running.Runs]) -> dict[Path, str]:
        runs = {path: run_flags for cell, part in parts.items() for path, run_flags in cell.left(part).items()}
        outcomes = running.run_all(runs, jobs, examined.together, asked.directory, lambda path: None) if runs else {}
        for cell in parts:
            cell.note(outcomes)
        return outcomes

    outcomes = train({cell: cell.tuning(asked.choice) for cell in possible})
    if pool.STOPPED not in outcomes.values():
        outcomes = {path: outcome for path, outcome in outcomes.items() if outcome == pool.FAILED}
        tried = {cell: scores for cell in possible if (scores := cell.tried(asked.choice))}
        rates = {cell: cells.best(scores) for cell, scores in tried.items() if not cells.all_diverged(scores)}
        outcomes |= train({cell: cell.tested(rate, asked.seeds) for cell, rate in rates.items()})
    table = asked.table(examined.reasons, before)
    table.write(asked.directory / cells.TABLE)
    print(table.text())
    return running.sum_up(outcomes, f"The table is in {asked.directory / cells.TABLE}.")


def _merge(paths: Sequence[Path], out: Path | None) -> int:
    if out is None:
        raise UsageError("Where does the joined table go? Give an --out.")
    table = TrialTable.merged([TrialTable.read(path) for path in paths])
    table.write(out)
    print(table.text(), f"The table is in {out}.", sep="\n")
    return cli.DONE


main = cli.program(
    __doc__,
    cli.flag("specs", nargs="*", metavar="SPEC", help="mechanisms, as in --config.model.attention"),
    cli.flag("--workdir", type=Path, metavar="DIR", help="the folder of the runs and the table"),
    cli.flag("--only", **SEVERAL, metavar="TRIAL", help=f"a trial; may be given again; default {', '.join(FIRST)}"),
    cli.flag("--all", action="store_true", help="all trials"),
    cli.flag("--seeds", type=cli.count, default=5, help="number of seeds that are tested"),
    cli.flag("--rates", default=RATES, metavar="RATE,...", help=f"learning rates to choose from, default {RATES}"),
    cli.flag("--tuning-seeds", type=cli.count, default=2, help="number of seeds of each rate that is tried"),
    cli.flag("--jobs", type=cli.count, default=0, help="runs at a time; default one for each CPU, one on accelerators"),
    cli.flag("--merge", **SEVERAL, type=Path, metavar="FILE", help="a table to join with others; may be given again"),
    cli.flag("--out", type=cli.new_file, metavar="FILE", help="the joined table"),
    lasting=True,
)(run)


if __name__ == "__main__":
    sys.exit(main())
