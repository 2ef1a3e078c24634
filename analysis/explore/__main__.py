"""Write a page that shows what the heads of trained models attend to, for any browser, without a network.

python -m analysis.explore --workdir=runs/gpt --text="for each line in the file, read the line"
python -m analysis.explore --workdir=runs/vit --examples 3 5 10 --out=digits.html
python -m analysis.explore --workdir=runs/dates --text="en de 12/31/1999" --text="fr de lundi 2 mars 2020"
python -m analysis.explore --workdir=runs/digits/super runs/digits/neural
python -m analysis.explore --gallery --workdir=runs/gpt runs/vit runs/dates --text="for each line, read it"

Texts come from --text or from the run's data; images come from the run's data. Runs that read the same tokens can be
shown side by side. A gallery shows the same examples through many mechanisms; its folders are runs or hold runs, one
for each task and mechanism.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train import cli
from train.cli.files import write_text
from train.cli.terminal import counted


@cli.program(
    __doc__,
    cli.flag("runs", nargs="*", type=Path, metavar="RUN ...", help="more runs, to show beside the first"),
    cli.flag("--workdir", type=Path, required=True, metavar="RUN", help="the run's folder"),
    cli.flag("--gallery", action="store_true", help="show all mechanisms side by side, with runs of one or more tasks"),
    cli.flag("--text", action="append", default=[], help="text for models of text; may be given several times"),
    cli.flag("--examples", nargs="+", type=int, default=[0, 1, 2], help="numbers of examples, from 0; default 0 1 2"),
    cli.flag("--split", default="test", help="split of the examples: train, validation or test"),
    cli.flag("--tokens", type=cli.count, default=64, help="most tokens taken from a text of the data"),
    cli.flag("--step", default="best", help="best, last or a step that has a checkpoint"),
    cli.CODE,
    cli.flag("--out", type=cli.new_file, default="explorer.html", help="the page"),
)
def main(flags: argparse.Namespace) -> None:
    """Writes the page."""
    from analysis.explore import extraction, page  # slow, so not before --help
    from train.mesh import compilation

    compilation.keep_programs()
    folders = [flags.workdir, *flags.runs]
    if twice := [folder for folder in folders if folders.count(folder) > 1]:
        raise UsageError(f"{twice[0]} is given twice; give it once.")
    wanted = extraction.Wanted(tuple(flags.text), tuple(flags.examples), flags.split, flags.tokens, flags.step)
    if flags.gallery:
        text, what = _gallery(folders, wanted)
    else:
        runs = extraction.alike([extraction.of_run(folder, wanted) for folder in folders])
        text, what = page.of(runs), f"{counted(len(runs[0].examples), 'example')} of {counted(len(runs), 'run')}"
    write_text(flags.out, text)
    size = flags.out.stat().st_size
    print(f"Written: {flags.out} ({size / 1e6:.1f} MB), {what}.")


def _gallery(folders: Sequence[Path], wanted: Any) -> tuple[str, str]:
    """Makes the page of the mechanisms whose runs are in the folders, and describes its content."""
    from analysis import archive
    from analysis.explore import extraction, page

    runs = [run for folder in folders for run in archive.work_directories(folder)]
    mechanisms = extraction.by_mechanism([extraction.of_run(run, wanted.of_task(run)) for run in runs])
    first = next(iter(mechanisms.values()))
    examples = counted(sum(len(run.examples) for run in first), "example")
    return page.gallery(mechanisms), f"{examples} of {counted(len(mechanisms), 'mechanism')}"


if __name__ == "__main__":
    sys.exit(main())
