"""Train the sweeps behind docs/studies, which test the papers' claims at the size that two CPU cores allow.

    python -m studies.replication --data=DATA --runs=runs/replication --only gpt_tuned
    python -m studies.replication --pictures

Runs without a result are trained with `train.sweep`. Each run and each trial is kept in `docs/replication/NAME.json`
when it ends, and is not trained again on any machine. So you can stop the program, commit that file, and give the same
command later. From that file it draws the pictures, and `python -m docs.figures` writes the page's tables. DATA is a
folder with `tfds/` (mnist, cifar100), `imdb/`, `wikitext2/`, `spa_eng/` and `multi30k/`, and for a GPU `mnist.npz` and
`cifar100.npz`, the images of TFDS in its order as `numpy:` reads them; results record this path, so give it relative to
the project's folder. The kept runs were trained with `--data=data`. To train a study anew, or with another path, move
its file away. `--archive` trains nothing: it keeps what a killed process left. `--seconds` stops after that time, as
Ctrl-C does, and ends with 0; runs in progress are saved within seconds, or when they have compiled, and the next call
continues them.
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

from analysis import archive, comparison, tables, verdicts
from analysis.metrics import METRICS
from analysis.pictures import curves, effects, style
from analysis.runs import Found
from analysis.tables import ResultTable
from analysis.verdicts import Verdict
from attention.errors import check_known
from studies import kept, ledger, pretraining
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from train import cli, sweep
from train.cli.terminal import counted
from train.grids import declaration
from train.grids.declaration import Declaration

SEEDS_ALONE = "± is half the 95 % interval over seeds; it leaves out the sampling of the test set."
OF_THE_LEDGER = "Verdicts are by the declared rule; the [ledger](../ledger.md) judges the papers' claims by its own."


@cli.program(
    __doc__,
    cli.flag("--data", type=Path, default=Path("data"), help="the folder of data sets"),
    cli.flag("--runs", type=Path, default=Path("runs/replication"), help="folder of the sweeps"),
    cli.flag("--only", nargs="*", default=[*ALL], metavar="NAME", help=f"the studies: {', '.join(ALL)}"),
    cli.flag("--print", action="store_true", help="print each sweep's command, and train nothing"),
    cli.flag("--archive", action="store_true", help="keep what a killed process left, and train nothing"),
    cli.flag("--pictures", action="store_true", help="only draw the pictures of the kept runs"),
    cli.flag("--seconds", type=cli.count, default=0, help="save and stop after this time; by default never"),
    lasting=True,
)
def main(flags: argparse.Namespace) -> int:
    """Trains, prints, archives or draws the studies; returns the exit code. A failed run does not stop its study.

    Raises:
      UsageError: A study is unknown; see `train` too.
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
            print("Time is up; the same command continues.")
            break
    signal.alarm(0)
    return code


def _over_after(seconds: int) -> threading.Event:
    """Interrupts this program after some seconds, as Ctrl-C does, and sets the returned event; 0 is never."""
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
    """Does what the flags ask for with a study; returns the exit code."""
    folder = flags.runs / name
    given = ALL[name].flags(flags.data, folder)
    if flags.print:
        print(shlex.join(["python", "-m", "train.sweep", *given]))
    elif flags.archive:
        print(_kept(name, folder))
    elif flags.pictures or train(given, folder, flags.data):
        draw(name)
    else:
        print(f"{name} has not finished; the same command continues.")
        return cli.FAILED
    return cli.DONE


def _kept(name: str, folder: Path) -> str:
    """Keeps the runs and trials that have ended, and counts them in a sentence."""
    finished, trials = kept.keep(folder)
    return f"{name}: {finished} of {counted(ALL[name].runs, 'run')} and {counted(trials, 'trial')} are kept."


def train(given: list[str], folder: Path, sets: Path) -> bool:
    """Trains a sweep's runs that are not kept yet, and keeps each of them; returns whether none failed.

    Raises:
      UsageError: The sweep's flags are wrong, or its data are missing.
      KeyboardInterrupt: The sweep was stopped.
    """
    study = ALL[folder.name]
    if kept.keep(folder)[0] >= study.runs:
        return True
    archive.unpack(kept.read(folder.name), folder)
    if study.start:
        pretraining.train(study.start, sets, folder.parent)
    done = not sweep.run(sweep.main.parser().parse_args(given), lambda _: kept.keep(folder))
    if done and kept.keep(folder)[0] < study.runs:
        raise KeyboardInterrupt
    return done


def draw(name: str) -> None:
    """Draws the pictures of a study's kept runs; there are none if no run is kept."""
    found = kept.find(name)
    if found is None:
        return
    declared = declaration.read(DECLARATIONS / f"{name}.json")
    style.save(effects.figure(_judged(found, name, declared), declared), kept.KEPT / f"{name}_effects.svg")
    groups, metric = _curves(name, found)
    style.save(curves.figure(groups, (metric,), axes=("step",)), kept.KEPT / f"{name}.svg")
    print(f"{name}: the pictures are drawn; `python -m docs.figures` writes the page.")


def _curves(name: str, found: Found) -> tuple[curves.Groups, str]:
    """Groups the records by setting, and finds the study's first metric that they have on validation data."""
    groups = {group.label: [run.record for run in group.runs] for group in found.groups}
    measured = curves.metrics_of(groups)
    return groups, next(metric for metric in ALL[name].metrics if metric in measured)


def text(name: str) -> str:
    """Writes the question, the results of each setting, the verdicts, and the pictures."""
    found, study = kept.find(name), ALL[name]
    declared = declaration.read(DECLARATIONS / f"{name}.json")
    count = sum(len(group.runs) for group in found.groups) if found else 0
    progress = f"{count} of {counted(study.runs, 'run')} {'is' if count == 1 else 'are'} in."
    asked = f"**Question.** {declared.question} {progress}"
    if found is None:
        return f"{asked}\n\n{_planned(name, declared)}"
    drawn = _curves(name, found)[1]
    pictures = (
        f"![Each comparison with its interval](../replication/{name}_effects.svg)",
        f"![{METRICS[drawn].title} by step of training](../replication/{name}.svg)",
    )
    parts = (*_parts(found, name, declared), flatness(found, declared, drawn))
    return "\n\n".join(filter(None, (asked, *parts, *pictures)))


def _planned(name: str, declared: Declaration) -> str:
    """Describes the declaration of a study that has no run yet."""
    rates = ALL[name].tune.partition("=")[2].replace(",", ", ")
    rates = f" Learning rates to choose from are {rates}." if rates else ""
    rows = [(row.name, verdicts.claimed(row, METRICS[declared.metric])) for row in declared.family]
    return f"{declared.remarks}{rates}\n\n{tables.plain_markdown(('comparison', 'claim'), rows)}"


def flatness(found: Found, declared: Declaration, other: str) -> str:
    """Describes how a validation metric changed in the last fifth of training, and whether it was flat.

    It was flat if the mean change of every setting is within the margin; '' if runs have too few evaluations.

    Args:
      declared: The metric and its margin.
      other: The metric to describe if validation data lack the declared one; flatness is then unknown.
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


def _parts(found: Found, name: str, declared: Declaration) -> list[str]:
    study = ALL[name]
    made = comparison.report(found, names=study.metrics, clocks=False)
    settings = [column.name for column in made.results.columns if "." in column.name]
    figures = ["attention_layer_parameters", "parameters", *(f"test_{metric}" for metric in study.metrics), "seeds"]
    results = only(made.results, [*settings, *figures])
    judged = verdicts.table(_judged(found, name, declared), METRICS[declared.metric])
    made_of = (results, judged, made.tuning)
    shown = [tables.markdown(table).strip() for table in made_of if table.rows]
    told = f"The comparisons were {study.chosen}. {SEEDS_ALONE} {_of_rates(found, name)}{OF_THE_LEDGER}"
    return [made.introduction, shown[0], told, *shown[1:]]


def _of_rates(found: Found, name: str) -> str:
    """Says so where rates were chosen by another metric than the one that is judged."""
    judged = ALL[name].metrics[0]
    chosen = found.sweeps[0]["tune"]["metric"] if ALL[name].tune else judged
    if chosen == judged:
        return ""
    return f"Learning rates were chosen by validation {METRICS[chosen].title.removesuffix(', %')}. "


def _judged(found: Found, name: str, declared: Declaration) -> list[Verdict]:
    """Judges a study's declared comparisons, in the words that its size allows."""
    kind = "reduced" if ALL[name].kind == ledger.ANOTHER else ALL[name].kind
    judged = verdicts.judge(found, declared)
    return [dataclasses.replace(verdict, words=ledger.worded(verdict.words, kind)) for verdict in judged]


def only(table: ResultTable, names: Iterable[str]) -> ResultTable:
    """Selects columns of a table by name, in the table's order."""
    names = set(names)
    return ResultTable(tuple(column for column in table.columns if column.name in names))


if __name__ == "__main__":
    sys.exit(main())
