"""Try what mechanisms can do, on small tasks made for that: recall, copying, selection, following a state.

python -m train.trials "neural(dim=2)" delta
python -m train.trials "gated_delta|dot_product" --only=parity --only=selective --seeds=8 --workdir=runs/hybrid
python -m train.trials --merge=mine.json theirs.json --out=ours.json

Every mechanism has the same frame and the same learning rates to choose from, on seeds that are not tested. The same
command continues what was stopped. `docs/trials.md` describes the trials.
"""

import argparse
import sys
from pathlib import Path

from train import cli
from train.grids.trial_table import FIRST

RATES = "1e-3,3e-3,1e-2,3e-2"
SEVERAL = {"action": "append", "default": []}


def run(flags: argparse.Namespace) -> int:
    """Trains the cells that are left, or merges tables; see `trying.run`."""
    from train.grids import trying  # only here, so that --help answers at once

    return trying.run(flags)


main = cli.program(
    __doc__,
    cli.flag("specs", nargs="*", metavar="SPEC", help="mechanisms, as in --config.model.attention"),
    cli.flag("--workdir", type=Path, metavar="DIR", help="the folder of the runs and the table; default runs/trials"),
    cli.flag("--only", **SEVERAL, metavar="TRIAL", help=f"a trial; may be repeated; default {', '.join(FIRST)}"),
    cli.flag("--all", action="store_true", help="make all trials"),
    cli.flag("--full", action="store_true", help="use the published sizes, for an accelerator"),
    cli.flag("--seeds", type=cli.count, default=5, help="number of seeds to test"),
    cli.flag("--rates", default=RATES, metavar="RATE,...", help=f"learning rates to choose from, default {RATES}"),
    cli.flag("--tuning-seeds", type=cli.count, default=2, help="number of seeds to try each rate with"),
    cli.flag("--jobs", type=cli.count, default=0, help="runs at a time; default one for each CPU, one on accelerators"),
    cli.flag("--merge", **SEVERAL, type=Path, metavar="FILE", help="a table to merge with others; may be repeated"),
    cli.flag("--out", type=cli.new_file, metavar="FILE", help="the file for the merged table"),
    lasting=True,
)(run)


if __name__ == "__main__":
    sys.exit(main())
