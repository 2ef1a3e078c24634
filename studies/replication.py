"""The sweeps behind docs/replication.md: what the papers' claims come to, at the size that two CPU cores allow.

    python -m studies.replication --data=DATA --runs=runs/replication
    python -m studies.replication --only gpt_tuned mnist_tuned --archive
    python -m studies.replication --only gpt_tuned mnist_tuned --restore

Trains what has no result yet with `train.sweep`, keeps each finished sweep in `docs/replication/NAME.json`, and makes
the page's tables and pictures of these files. Stopped at any moment, it goes on where it was. DATA is a folder with
`tfds/` (mnist, cifar100), `imdb/`, `wikitext2/`, `spa_eng/` and `multi30k/`; results name it, so give it from here.
`--archive` trains nothing: it keeps what has finished so far, of sweeps that have not. `--restore`, on another machine,
puts back what was kept, so that it is not trained again.
"""

import argparse
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from analysis import archive, report, tables
from analysis import runs as found_runs
from analysis.metrics import METRICS
from analysis.pictures import curves, style
from analysis.tables import ResultTable
from attention.errors import unknown
from studies import runs
from studies.declared import DECLARED
from studies.definitions import STUDIES
from train import cli, sweep
from train.grids import grid, pool

PAGE = runs.ROOT / "docs/replication.md"
KEPT = runs.ROOT / "docs/replication"
ALL = {**DECLARED, **STUDIES}


@cli.program(
    __doc__,
    cli.flag("--data", type=Path, default=Path("data"), help="the folder of data sets"),
    cli.flag("--runs", type=Path, default=Path("runs/replication"), help="where the sweeps are"),
    cli.flag("--only", nargs="*", default=[*ALL], metavar="NAME", help=f"of {', '.join(ALL)}"),
    cli.flag("--print", action="store_true", help="print each sweep's command, and train nothing"),
    cli.flag("--archive", action="store_true", help="keep what has finished so far, and train nothing"),
    cli.flag("--restore", action="store_true", help="put back what was kept, and train nothing"),
    cli.flag("--tables", action="store_true", help="make tables and pictures of what is kept alone"),
)
def main(flags: argparse.Namespace) -> int:
    """Trains, or prints or draws alone; returns the exit code. A run that fails stops no study.

    Raises:
      UsageError: an unknown study, or what `train` raises.
    """
    for name in flags.only:
        if name not in ALL:
            raise unknown("study", name, ALL)
    code = cli.DONE
    for name in flags.only:
        folder, kept = flags.runs / name, KEPT / f"{name}.json"
        given = ALL[name].flags(flags.data, folder)
        if flags.print:
            print(shlex.join(["python", "-m", "train.sweep", *given]))
        elif flags.archive:
            keep(folder, kept)
        elif flags.restore:
            count = archive.unpack(archive.read(kept), folder) if kept.is_file() else 0
            print(f"{name}: {count} runs were put back.")
        elif flags.tables or train(given, folder, kept):
            put(name, kept)
        else:
            print(f"{name} has not finished, so it was not kept; the same command goes on.")
            code = cli.FAILED
    return code


def train(given: list[str], folder: Path, kept: Path) -> bool:
    """Trains a sweep and keeps it; returns whether all of its runs have finished, which they do but for failures.

    Raises:
      UsageError: a mistake in what the sweep is given, such as data that are not there.
      KeyboardInterrupt: it was stopped.
    """
    if sweep.run(sweep.main.parser().parse_args(given)):
        return False
    if not all(map(pool.is_finished, _runs(folder, grid.read(folder)))):
        raise KeyboardInterrupt
    keep(folder, kept)
    return True


def keep(folder: Path, kept: Path) -> None:
    """Archives the runs of a sweep that have finished, and what was tried before; says how many there are of how many.

    Raises:
      UsageError: the folder cannot be read.
    """
    record = grid.read(folder) if folder.is_dir() else None
    asked = _runs(folder, record)
    if not any(map(pool.is_finished, asked)):
        print(f"{folder.name}: no run has finished, so nothing was kept.")
        return
    finished = archive.find([folder])
    kept.parent.mkdir(exist_ok=True)
    archive.write(finished, kept, folder)
    print(f"{folder.name}: {len(finished.entries)} of {len(asked)} runs are kept in {kept.name}.")


def _runs(folder: Path, record: Mapping[str, Any] | None) -> list[Path]:
    """The work directories of a sweep; none of one that has not begun."""
    cells, seeds = (record["cells"], record["seeds"]) if record else ((), ())
    return [folder / cell / grid.run_name(of_run) for cell in cells for of_run in seeds]


def put(name: str, kept: Path) -> None:
    """The tables of a kept sweep, and its picture, into the page; nothing where it is not kept yet.

    A declared study need not have a place there.

    Raises:
      UsageError: the page has no place for it.
    """
    declared = name in DECLARED and runs.MARK.format(name) not in PAGE.read_text(encoding="utf-8")
    if declared or not kept.is_file():
        return
    runs.put(PAGE, name, text(name, kept))
    if ALL[name].picture:
        found = found_runs.find([kept])
        groups = {each.label: [run.record for run in each.runs] for each in found.groups}
        style.save(curves.figure(groups, ALL[name].metrics[:1]), kept.parent / f"{name}.svg")


def text(name: str, kept: Path) -> str:
    """Markdown: what each setting reached, what may be said of the differences, and the picture if there is one."""
    study = ALL[name]
    found = found_runs.find([kept])
    made = report.report(found, names=study.metrics)
    settings = [column.name for column in made.results.columns if "." in column.name]
    figures = ["attention_layer_parameters", "parameters", *(f"test_{metric}" for metric in study.metrics), "seeds"]
    results = only(made.results, [*settings, *figures])
    differences = [made.differences]
    if study.also:
        differences.append(report.report(found, study.also, study.metrics[:1]).differences)
    shown = [results, *(only(table, ["setting", "baseline", "metric", "conclusion"]) for table in differences)]
    parts = [made.introduction, *(tables.markdown(table).strip() for table in shown)]
    if study.picture:
        parts.append(f"![{METRICS[study.metrics[0]].title} by step and by second of training](replication/{name}.svg)")
    return "\n\n".join(parts)


def only(table: ResultTable, names: Iterable[str]) -> ResultTable:
    """Those columns of a table, in their order there."""
    names = set(names)
    return ResultTable(tuple(column for column in table.columns if column.name in names))


if __name__ == "__main__":
    sys.exit(main())
