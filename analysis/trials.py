"""What a table of trials shows: the accuracies of mechanisms, their uncertainty, and the claims that they allow."""

import dataclasses
import statistics as plain
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from analysis import statistics, verdicts
from analysis.metrics import METRICS
from analysis.verdicts import Verdict
from attention.errors import UsageError
from train.grids.declaration import Comparison, Declaration
from train.grids.trial_table import SOLVED, TrialTable, check_alike

BASELINE = "dot_product"
CHANCE = "chance"  # in place of a mechanism
MARGIN = 0.05  # accuracies that differ by less are equal
RISE = 0.01  # an accuracy that rises by this much late in training is still rising
CAN, CANNOT = 0.9, 0.5  # shares of the way from chance to 1
ACCURACY = METRICS["accuracy"]


@dataclasses.dataclass(frozen=True)
class Reached:
    """The accuracies of a cell's seeds at a size; a seed that diverged has the accuracy of chance."""

    accuracies: Sequence[float]

    @property
    def seeds(self) -> int:
        """The number of seeds."""
        return len(self.accuracies)

    @property
    def mean(self) -> float:
        """The mean accuracy."""
        return plain.fmean(self.accuracies)

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the mean's 95 % interval, clipped to 0 and 1; NaN with one seed."""
        half = float(statistics.summary(np.array(self.accuracies)).half_width)
        low, high = np.clip([self.mean - half, self.mean + half], 0, 1)
        return float(low), float(high)

    @property
    def solved(self) -> int:
        """The number of seeds that solved the trial."""
        return sum(accuracy >= SOLVED for accuracy in self.accuracies)

    @property
    def share(self) -> tuple[float, float]:
        """The ends of Wilson's 95 % interval of the share of seeds that solve it."""
        return statistics.wilson(self.solved, self.seeds)


def read(paths: Sequence[Path]) -> tuple[TrialTable, list[str]]:
    """Reads a table, and appends the cells that other tables have of its trials.

    Returns:
      The table, and remarks on trials that were left out because they are not comparable.
    """
    table, *others = map(TrialTable.read, paths)
    remarks = []
    for path, other in zip(paths[1:], others, strict=True):
        trials = []
        for trial in other.trials:
            try:
                check_alike(trial, table.trials.get(trial, other.trials[trial]), other.trials[trial])
                trials.append(trial)
            except UsageError as error:
                remarks.append(f"{trial} of {path.name} was left out. {error}")
        table = table.beside(other, trials)
    return table, remarks


def sizes(table: TrialTable, trial: str) -> list[str]:
    """Lists the names of a trial's accuracies, from that at training's sizes to that at the greatest size."""
    rows = [row for row in table.rows if row["trial"] == trial and "accuracy" in row]
    names = dict.fromkeys(name for row in rows for name in row if name.startswith("accuracy"))
    return sorted(names, key=lambda name: int(name.rpartition("_")[2]) if name[-1].isdigit() else 0)


def size_of(name: str) -> str:
    """Reads the size from an accuracy's name; '' for the sizes of training."""
    return name.removeprefix("accuracy").removeprefix("_at_")


def find(table: TrialTable, trial: str, spec: str) -> dict[str, Any]:
    """Finds a cell; {} if it is missing, or has a reason in place of accuracies."""
    rows = (row for row in table.rows if (row["trial"], row["spec"]) == (trial, spec) and "accuracy" in row)
    return next(rows, {})


def reached(row: dict[str, Any], name: str) -> Reached | None:
    """Reads a cell's accuracies at a size; None if nothing was measured."""
    return Reached(row[name]) if name in row else None


def differences(table: TrialTable, trial: str, name: str, spec: str, other: str) -> Float[np.ndarray, " seeds"]:
    """Subtracts the accuracies of another mechanism, or chance, seed by seed; empty if either is missing."""
    ours, chance = find(table, trial, spec), table.trials[trial]["chance"] if trial in table.trials else None
    values = ours.get(name, [])
    theirs = [chance] * len(values) if other == CHANCE else find(table, trial, other).get(name, [])
    return np.array([a - b for a, b in zip(values, theirs, strict=False)])


def at_greatest(table: TrialTable, trial: str, spec: str, other: str) -> Float[np.ndarray, " seeds"]:
    """Subtracts the accuracies at the trial's greatest size; see `differences`."""
    names = sizes(table, trial)
    return differences(table, trial, names[-1], spec, other) if names else np.array([])


def judge(table: TrialTable, spec: str, other: str = BASELINE) -> Iterator[tuple[str, str, Verdict]]:
    """Compares a mechanism with another in each trial at its greatest size, as one family.

    Yields:
      The trial, the size, and the verdict.
    """
    trials = [trial for trial in table.trials if find(table, trial, spec) and find(table, trial, other)]
    found = [at_greatest(table, trial, spec, other) for trial in trials]
    if trials:
        judged = verdicts.judge_differences(found, declared([Comparison(trial, [spec], [other]) for trial in trials]))
        yield from zip(trials, (size_of(sizes(table, trial)[-1]) for trial in trials), judged, strict=True)


def declared(family: Sequence[Comparison]) -> Declaration:
    """Declares a family of comparisons of accuracies."""
    return Declaration("What can a mechanism do?", "accuracy", MARGIN, family)


def sentence(spec: str, other: str, trial: str, size: str, verdict: Verdict) -> str:
    """Writes what can be claimed of a mechanism against another, or that nothing can."""
    at = f"{trial} at size {size}" if size else trial
    if len(verdict.differences) < 2:
        return f"{spec} against {other} in {at}: one seed decides nothing; give more --seeds."
    number = f"{verdict.number(ACCURACY)} points, {len(verdict.differences)} seeds"
    if verdict.words in (verdicts.BETTER, verdicts.WORSE):
        return f"{spec} is {verdict.words} than {other} in {at}: {number}."
    if verdict.words.startswith("equal"):
        return f"{spec} and {other} are {verdict.words} in {at}: {number}."
    if verdict.words == verdicts.NOT_TESTED:
        alike = ACCURACY.with_unit(ACCURACY.text(float(np.mean(verdict.differences)), "+"))
        return f"{spec} against {other} in {at}: all seeds differ alike, by {alike}."
    return f"{spec} against {other} in {at}: undecided, {number}; a difference of {finds(verdict)} would be found."


def finds(verdict: Verdict) -> str:
    """Writes the smallest difference that would be found in 80 % of cases, the margin included."""
    beyond = 0 if verdict.comparison.claim == "equal" else MARGIN
    return ACCURACY.with_unit(ACCURACY.text(beyond + verdict.detects))


def is_at_edge(table: TrialTable, row: dict[str, Any]) -> bool:
    """Tells whether a cell chose the lowest or the highest rate, beyond which there may be a better one."""
    rates = table.trials[row["trial"]]["settings"]["tuning.rates"]
    return float(row["rate"]) in (min(rates), max(rates))


def is_rising(row: dict[str, Any]) -> bool:
    """Tells whether mean validation accuracy still rose by a point or more over the last fifth of training."""
    late = [place for place, step in enumerate(row["steps"]) if step <= 0.8 * row["steps"][-1]][-1:]
    means = np.mean(row["curves"], axis=0)
    return bool(late) and bool(means[-1] - means[late[0]] >= RISE)


def able(table: TrialTable, trial: str) -> tuple[list[str], list[str], list[str]]:
    """Sorts a trial's mechanisms by their intervals at the greatest size, the best first.

    Returns:
      The mechanisms that can do it, whose intervals lie above 90 % of the way from chance to 1; those that cannot,
      whose intervals lie below half of it; and the others.
    """
    names, chance = sizes(table, trial), table.trials[trial]["chance"]
    cells = {row["spec"]: reached(row, names[-1]) for row in table.rows if row["trial"] == trial and "accuracy" in row}
    found = sorted(((cell, spec) for spec, cell in cells.items() if cell), key=lambda pair: -pair[0].mean)
    ends = {spec: [(end - chance) / (1 - chance) for end in cell.interval] for cell, spec in found}
    can = [spec for spec, (low, _) in ends.items() if low >= CAN]
    cannot = [spec for spec, (_, high) in ends.items() if high <= CANNOT]
    return can, cannot, [spec for spec in ends if spec not in can and spec not in cannot]
