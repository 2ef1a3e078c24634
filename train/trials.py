"""Try what mechanisms can do, on small tasks made for it: recall, copying, selection, following a state.

python -m train.trials "neural(dim=2)" delta --workdir=runs/trials
python -m train.trials "gated_delta|dot_product" --only stacked --only parity --seeds=8 --workdir=runs/trials
python -m train.trials --merge mine.json --merge theirs.json --out=ours.json

Every mechanism has the same frame, and the same learning rates to choose from, on seeds that are not tested. The same
command continues what was stopped. `docs/trials.md` says what the trials are.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from attention.errors import UsageError, check_known
from models.fields import LAYERS
from models.mechanisms import resolve
from train import cli
from train.grids import cells, matching, pool, running
from train.grids.cells import Cell, TrialTable

FIRST = ("stacked", "parity", "selective")  # what a first table takes, in minutes on two cores
RATES = "1e-3,3e-3,1e-2"
SEVERAL = {"action": "append", "default": []}


@dataclasses.dataclass(frozen=True)
class Asked:
    """The cells of a table, and how they are made."""

    cells: Sequence[Cell]
    rates: Sequence[str]
    seeds: int  # that are tested
    tuning_seeds: int
    directory: Path

    @classmethod
    def of(cls, flags: argparse.Namespace) -> "Asked":
        """Reads which cells the flags ask for; raises a UsageError where they have a mistake."""
        if not flags.specs:
            raise UsageError('Which mechanisms are tried? Name some, such as delta or "neural(dim=2)".')
        if flags.workdir is None:
            raise UsageError("Where do the runs go? Give a --workdir, such as runs/trials.")
        trials = flags.only or (cells.known() if flags.all else FIRST)
        for spec in flags.specs:
            resolve(spec, LAYERS)  # a slip of the pen; what a trial's frame cannot have is the cell's reason
        for trial in trials:
            check_known("trial", trial, cells.known())
        rates = flags.rates.split(",")
        cells.check_rates(rates)
        made = [
            Cell(trial, spec, flags.workdir) for spec in dict.fromkeys(flags.specs) for trial in dict.fromkeys(trials)
        ]
        return cls(made, rates, flags.seeds, flags.tuning_seeds, flags.workdir)

    def table(self, reasons: Sequence[str]) -> TrialTable:
        """Makes the table of what has finished."""
        rows = []
        for cell, reason in zip(self.cells, reasons, strict=True):
            tried = cell.tried(self.rates, self.tuning_seeds)
            whole = all(len(scores) == self.tuning_seeds for scores in tried.values()) and not reason
            rows.append(cell.row(tried if whole else {}, self.seeds, reason))
        return TrialTable.of(rows)


def run(flags: argparse.Namespace) -> int:
    """Trains the cells that are left, and writes and prints the table; or merges tables.

    Returns:
      The exit code: 0 done or saved, 1 a run failed.
    """
    if flags.merge:
        table = TrialTable.merged([TrialTable.read(path) for path in flags.merge])
        table.write(flags.out or Path(cells.TABLE))
        print(table.text())
        return cli.DONE
    plan = Asked.of(flags)
    print(f"Checking {len(plan.cells)} cells", flush=True)
    examined = matching.apart(matching.examined, [cell.request for cell in plan.cells])
    possible = [cell for cell, reason in zip(plan.cells, examined.reasons, strict=True) if not reason]
    jobs = flags.jobs or (0 if examined.platform == "cpu" else 1)

    def train(todo: Iterable[running.Runs]) -> dict[Path, str]:
        runs = {path: run_flags for part in todo for path, run_flags in part.items()}
        return running.run_all(runs, jobs, examined.together, plan.directory, lambda path: None) if runs else {}

    outcomes = train(cell.tuning(plan.rates, plan.tuning_seeds) for cell in possible)
    if pool.STOPPED not in outcomes.values():
        rates = {cell: cells.best(cell.tried(plan.rates, plan.tuning_seeds)) for cell in possible}
        outcomes |= train(cell.tested(rate, plan.seeds) for cell, rate in rates.items())
    table = plan.table(examined.reasons)
    table.write(plan.directory / cells.TABLE)
    print(table.text())
    return running.sum_up(outcomes, f"The table is in {plan.directory / cells.TABLE}.")


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
    cli.flag("--merge", **SEVERAL, type=Path, metavar="FILE", help="a table to join with others; given again"),
    cli.flag("--out", type=Path, metavar="FILE", help="the joined table"),
    lasting=True,
)(run)


if __name__ == "__main__":
    sys.exit(main())
