"""Compare finished runs: tables, tests, and the conclusions that the differences allow.

python -m analysis.report runs/digits
python -m analysis.report runs/digits --baseline=dot_product --metric=accuracy,loss --out=report
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train import cli
from train.cli.files import write_text


def _draw(made: Any, out: Path) -> None:
    """Draws every group's training curves, the first metric of all groups side by side, and the tuning."""
    from analysis.metrics import METRICS
    from analysis.pictures import curves, intervals, style, tuning

    name, groups = next(iter(made.compared)), made.found.groups
    values = {group.label: [run.value(name) for run in group.runs] for group in groups}
    baselines = {compared.baseline.label for compared in made.comparisons}
    style.save(intervals.figure(values, METRICS[name], baselines), out / "comparison")
    style.save(curves.figure({group.label: [run.record for run in group.runs] for group in groups}), out / "curves")
    for number, sweep in enumerate(sweep for sweep in made.found.sweeps if sweep.get("tune")):
        style.save(tuning.figure(sweep), out / f"tuning{number or ''}")


@cli.program(
    __doc__,
    cli.flag("places", nargs="+", type=Path, help="folders of finished runs, or archives"),
    cli.flag("--baseline", default="", help="the setting to compare with: a value such as dot_product, or FIELD=VALUE"),
    cli.flag("--metric", default="", help="metrics to compare, such as accuracy,loss"),
    cli.flag("--at", default="", help="compare validation curves at equal examples, seconds, flops"),
    cli.flag("--out", type=Path, help="folder for the files; by default the folder that holds all runs"),
)
def main(flags: argparse.Namespace) -> None:
    """Writes, draws and prints the report."""
    from analysis import comparison, runs, screen  # slow, so not before --help
    from analysis.pages import comparison as page

    out = flags.out or _folder(flags.places)
    names = [name for name in flags.metric.split(",") if name]
    made = comparison.report(runs.find(flags.places), flags.baseline, names, flags.at)
    files = [*made.write(out), out / "report.html"]
    write_text(files[-1], page.page(made, out))
    _draw(made, out)
    screen.show(made, files)


def _folder(places: Sequence[Path]) -> Path:
    """Chooses the folder of the files: the only place, one named after the only archive, or the places' common parent.

    Raises:
      UsageError: The places have no common parent.
    """
    if len(places) == 1:
        return places[0].with_suffix("") if places[0].is_file() else places[0]
    folders = list(dict.fromkeys(Path(os.path.abspath(place)).parent for place in places))
    if len(folders) > 1:
        raise UsageError(
            f"The runs are in several folders, such as {folders[0]} and {folders[1]}; say where the report goes, such "
            "as --out=report."
        )
    return folders[0]


if __name__ == "__main__":
    sys.exit(main())
