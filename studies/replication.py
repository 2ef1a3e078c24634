"""The sweeps behind docs/studies: what the papers' claims come to, at the size that two CPU cores allow.

    python -m studies.replication --data=DATA --runs=runs/replication --only gpt_tuned
    python -m studies.replication --tables

The program trains what has no result yet, with `train.sweep`. It keeps each run and each trial in
`docs/replication/NAME.json` as it ends, and does not train again what is kept there, on any machine. So you can stop
it, commit that file, and give the same command later. The page's tables and pictures are made of what is kept. DATA is
a folder with `tfds/` (mnist, cifar100), `imdb/`, `wikitext2/`, `spa_eng/` and `multi30k/`; results record this path, so
give it relative to the project's folder. What is kept was trained with `--data=data`. To train a study anew, or with
another path, move its file away. `--archive` trains nothing: it keeps what a killed process left. `--seconds` stops
after that time, as Ctrl-C does, and ends with 0: trainings that run save within seconds, and go on at the next call.
"""

import argparse
import dataclasses
import math
import shlex
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from analysis import comparison, tables, verdicts
from analysis.metrics import METRICS
from analysis.pictures import curves, effects, style
from analysis.runs import Found
from analysis.tables import ResultTable
from attention.errors import check_known
from studies import kept, ledger, pretraining, runs
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from train import cli, sweep
from train.cli.terminal import counted
from train.grids import declaration
from train.grids.declaration import Declaration

PAGES = runs.ROOT / "docs/studies"
SEEDS_ALONE = "± is half a 95 % interval over seeds; it leaves out the sampling of the test set."


@cli.program(
    __doc__,
    cli.flag("--data", type=Path, default=Path("data"), help="the folder of data sets"),
    cli.flag("--runs", type=Path, default=Path("runs/replication"), help="where the sweeps are"),
    cli.flag("--only", nargs="*", default=[*ALL], metavar="NAME", help=f"of {', '.join(ALL)}"),
    cli.flag("--print", action="store_true", help="print each sweep's command, and train nothing"),
    cli.flag("--archive", action="store_true", help="keep what a killed process left, and train nothing"),
    cli.flag("--tables", action="store_true", help="only write the tables and pictures of what is kept"),
    cli.flag("--seconds", type=cli.count, default=0, help="stop, saved, after so long; default is no end"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> int:
    """Trains, or prints or draws alone; returns the exit code. A run that fails stops no study.

    Raises:
      UsageError: an unknown study, or what `train` raises.
    """
    for name in flags.only:
        check_known("study", name, ALL)
    over, code = _over_after(flags.seconds), cli.DONE
    for name in flags.only:
        try:
            code = max(code, _do(name, flags))
        except KeyboardInterrupt:
            if not over.is_set():
                raise
            print(_kept(name, flags.runs / name))
        if over.is_set():
            print("The time is over; the same command goes on.")
            break
    signal.alarm(0)
    return code


def _over_after(seconds: int) -> threading.Event:
    """Interrupts this program after so long, as Ctrl-C does, and then sets what is returned; 0 is never."""
    over = threading.Event()

    def ring(*_: Any) -> None:
        over.set()
        if signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler):
            raise KeyboardInterrupt  # the default would end the process at once
        signal.raise_signal(signal.SIGINT)

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    return over


def _do(name: str, flags: argparse.Namespace) -> int:
    """Does with a study what the flags say; returns the exit code."""
    folder = flags.runs / name
    given = ALL[name].flags(flags.data, folder)
    if flags.print:
        print(shlex.join(["python", "-m", "train.sweep", *given]))
    elif flags.archive:
        print(_kept(name, folder))
    elif flags.tables or train(given, folder, flags.data):
        put(name)
    else:
        print(f"{name} has not finished; the same command goes on.")
        return cli.FAILED
    return cli.DONE


def _kept(name: str, folder: Path) -> str:
    """Keeps what has ended, and says how much it is."""
    finished, trials = kept.keep(folder)
    return f"{name}: {finished} of {counted(ALL[name].runs, 'run')} and {counted(trials, 'trial')} are kept."


def train(given: list[str], folder: Path, sets: Path) -> bool:
    """Trains what is not kept yet of a sweep, and keeps it run by run; returns whether no run failed.

    Raises:
      UsageError: a mistake in what the sweep is given, such as data that are not there.
      KeyboardInterrupt: it was stopped.
    """
    study = ALL[folder.name]
    if kept.keep(folder)[0] >= study.runs:
        return True
    kept.put_back(folder)
    if study.start:
        pretraining.train(study.start, sets, folder.parent)
    done = not sweep.run(sweep.main.parser().parse_args(given), lambda _: kept.keep(folder))
    if done and kept.keep(folder)[0] < study.runs:
        raise KeyboardInterrupt
    return done


def put(name: str) -> None:
    """Puts the tables of what is kept of a study, and its pictures, into its page.

    Raises:
      UsageError: the page has no place for it.
    """
    found = kept.find(name)
    runs.put(PAGES / f"{name}.md", name, text(name))
    if found is None:
        return
    declared = declaration.read(DECLARATIONS / f"{name}.json")
    judged = [dataclasses.replace(row, words=_worded(row.words, name)) for row in verdicts.judge(found, declared)]
    style.save(effects.figure(judged, declared), kept.KEPT / f"{name}_effects.svg")
    groups, metric = _curves(name, found)
    style.save(curves.figure(groups, (metric,), axes=("step",)), kept.KEPT / f"{name}.svg")


def _curves(name: str, found: Found) -> tuple[curves.Groups, str]:
    """Groups the records by setting, and names the study's first metric that they have on validation data."""
    groups = {group.label: [run.record for run in group.runs] for group in found.groups}
    measured = curves.metrics_of(groups)
    return groups, next(metric for metric in ALL[name].metrics if metric in measured)


def text(name: str) -> str:
    """Writes the question, what each setting reached, the verdicts on what is compared, and the pictures."""
    found, study = kept.find(name), ALL[name]
    declared = declaration.read(DECLARATIONS / f"{name}.json")
    count = sum(len(group.runs) for group in found.groups) if found else 0
    progress = f"{count} of {counted(study.runs, 'run')} {'is' if count == 1 else 'are'} in."
    asked = f"**Question.** {declared.question} {progress}"
    if found is None:
        return f"{asked}\n\n{_planned(name, declared)}"
    drawn = _curves(name, found)[1]
    parts = [*_parts(found, name), flatness(found, declared, drawn), _pictures(name, drawn)]
    return "\n\n".join(filter(None, [asked, *parts]))


def _planned(name: str, declared: Declaration) -> str:
    """Says what is declared of a study that has no run yet."""
    rates = ALL[name].tune.partition("=")[2].replace(",", ", ")
    rates = f" Learning rates to choose from are {rates}." if rates else ""
    rows = [(row.name, verdicts.claimed(row, METRICS[declared.metric])) for row in declared.family]
    return f"{declared.remarks}{rates}\n\n{tables.plain_markdown(('comparison', 'claim'), rows)}"


def flatness(found: Found, declared: Declaration, other: str) -> str:
    """Says how a metric of validation data changed in the last fifth of training, and whether it was flat.

    It was where the mean change of every setting is within the margin. Nothing is said of single evaluations.

    Args:
      declared: The metric and its margin.
      other: What is told of where validation data have no such metric; then nobody knows whether it was flat.
    """
    known = all(run.curve(declared.metric) for group in found.groups for run in group.runs)
    name = declared.metric if known else other
    changes = [mean(run.late_change(name) for run in group.runs) for group in found.groups]
    if any(map(math.isnan, changes)):
        return ""
    metric = METRICS[name]
    least, greatest = (metric.text(change, "+") for change in (min(changes), max(changes)))
    number = metric.with_unit(least if least == greatest else f"{least} to {greatest}")
    title = metric.title.removesuffix(", %")
    said = f"In the last fifth of training, each setting's mean validation {title} changed by {number}"
    if not known:
        return f"{said}."
    flat = max(map(abs, changes)) <= declared.margin
    return f"{said}: {'flat' if flat else 'not flat'} within the margin of {metric.text(declared.margin)}."


def _parts(found: Found, name: str) -> list[str]:
    study = ALL[name]
    made = comparison.report(found, names=study.metrics)
    settings = [column.name for column in made.results.columns if "." in column.name]
    figures = ["attention_layer_parameters", "parameters", *(f"test_{metric}" for metric in study.metrics), "seeds"]
    results = only(made.results, [*settings, *figures])
    made_of = (results, _judged(found, name), made.tuning)
    shown = [tables.markdown(table).strip() for table in made_of if table.rows]
    return [made.introduction, shown[0], f"The comparisons were {study.chosen}. {SEEDS_ALONE}", *shown[1:]]


def _judged(found: Found, name: str) -> ResultTable:
    """Writes the verdicts on what a study declared, in the words that its size allows."""
    judged = verdicts.table(found, declaration.read(DECLARATIONS / f"{name}.json"))
    words = {column.name: column.cells for column in judged.columns}["verdict"]
    worded = tuple(_worded(word, name) for word in words)
    columns = (dataclasses.replace(c, cells=worded) if c.name == "verdict" else c for c in judged.columns)
    return ResultTable(tuple(columns))


def _worded(verdict: str, name: str) -> str:
    kind = ALL[name].kind
    return ledger.worded(verdict, "reduced" if kind == ledger.ANOTHER else kind)


def _pictures(name: str, metric: str) -> str:
    shown = f"![Each comparison with its interval](../replication/{name}_effects.svg)"
    return f"{shown}\n\n![{METRICS[metric].title} by step of training](../replication/{name}.svg)"


def only(table: ResultTable, names: Iterable[str]) -> ResultTable:
    """Takes these columns of a table, in their order there."""
    names = set(names)
    return ResultTable(tuple(column for column in table.columns if column.name in names))


if __name__ == "__main__":
    sys.exit(main())
