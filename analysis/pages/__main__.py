"""Write the page of a table of trials.

python -m analysis.pages runs/trials/trials.json configs/trials.json
python -m analysis.pages ours.json --out=ours.html

The page is about the first table, and is written beside it. Other tables add mechanisms to compare with, from trials
that had the same settings.
"""

import argparse
import sys
from pathlib import Path

from train import cli
from train.cli.files import write_text
from train.grids.trial_table import TrialTable


@cli.program(
    __doc__,
    cli.flag("tables", nargs="+", type=Path, metavar="TABLE", help="tables of trials; the page is about the first"),
    cli.flag("--out", type=cli.new_file, metavar="FILE", help="the page; by default beside the first table"),
)
def main(flags: argparse.Namespace) -> None:
    """Writes the page."""
    from analysis import trials  # slow, so not before --help
    from analysis.pages.trials import page

    own = TrialTable.read(flags.tables[0])
    table, remarks = trials.read(flags.tables)
    out = flags.out or flags.tables[0].with_suffix(".html")
    asked = list(dict.fromkeys(row["spec"] for row in own.rows))
    write_text(out, page(table, asked, remarks))
    print(f"The page is in {out}.")


if __name__ == "__main__":
    sys.exit(main())
