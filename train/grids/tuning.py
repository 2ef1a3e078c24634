"""Tuning: every setting of a sweep is tried with the same values of one field, and gets the best."""

import argparse
import dataclasses
import math
import shutil
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from attention.errors import UsageError
from attention.types import Rule, check
from train import tasks
from train.grids import pool
from train.grids.matching import Request
from train.run.workdir import read_result

FOLDER = "tuning"  # within a sweep; reports ignore it
APART = 2**20  # the first of seeds that no run has: more seeds cannot be tested
BEYOND = 2  # the number of values that may be added to the grid by default
RULE = (
    "Every setting is tried with every value. The best mean over seeds of the metric, on validation data at the best "
    "step, is chosen."
)
EXTENDED = " A choice at an end of the grid adds a value there, at the same ratio, for all settings, {} at most."


def _rise(text: str) -> bool:
    numbers = [float(number) for number in text.split(",")]
    return len(numbers) > 1 and numbers == sorted(set(numbers)) and 0 < numbers[0] <= numbers[-1] < math.inf


Values = Annotated[str, Rule("at least two rising numbers above 0, such as 1e-3,3e-3", _rise)]
Part = Annotated[str, Rule("a fraction above 0 and up to 1, such as 1/3", lambda text: 0 < Fraction(text) <= 1)]
Scores = Sequence[float | None]  # the metric with each seed; None where the loss was not finite
Tried = Mapping[str, Mapping[str, Scores]]  # by setting and value
Trials = dict[tuple[str, str], dict[Path, list[str]]]  # by setting and value, the flags of runs by their folders


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The values to try and the rule that chooses one, declared before anything is trained."""

    field: str  # a leaf of the config
    values: Sequence[str]  # the grid: texts of rising numbers
    length: str  # the length of a trial, as a fraction of a run's
    seeds: int  # number of seeds that each value is tried with
    metric: str  # the metric that chooses
    highest: bool  # whether its highest value is the best; else its lowest
    beyond: int = BEYOND  # the number of values that may be added to the grid
    rule: str = RULE + EXTENDED.format(BEYOND)  # the rule in words
    apart: bool = False  # whether trials have seeds that no run has

    def grid(self, tried: Tried) -> list[str]:
        """Lists the values to try: the declared ones, and those that the results so far add at the ends."""
        values, most = list(self.values), len(self.values) + self.beyond
        while len(values) < most and all(set(values) <= set(scores) for scores in tried.values()):
            best = {self.best({value: scores[value] for value in values}) for scores in tried.values()}
            beyond = [_beyond(values, end) for end in (0, -1) if values[end] in best]
            if not beyond:
                break
            values = sorted([*values, *beyond], key=float)
        return values[:most]

    def best(self, scores: Mapping[str, Scores]) -> str:
        """Chooses a value; see `best`."""
        return best(scores, self.highest)

    def trials(self, requests: Iterable[Request], tried: Tried, seed: int, directory: Path) -> Trials:
        """Plans the trials that have no scores yet; `seed` is the runs' first one."""
        seed = APART if self.apart else seed
        requests = {request.name: request for request in requests}
        tried = {name: tried.get(name, {}) for name in requests}
        return {
            (name, value): dict(self._trial(request, value, seed + index, directory) for index in range(self.seeds))
            for name, request in requests.items()
            for value in self.grid(tried)
            if value not in tried[name]
        }

    def scored(self, tried: Tried, ended: Trials, outcomes: Mapping[Path, str]) -> Tried:
        """Adds the scores of trials whose runs have finished or diverged; those that stopped or failed are left out."""
        scores = {name: dict(values) for name, values in tried.items()}
        for (name, value), paths in ended.items():
            if all(pool.is_finished(path) or outcomes.get(path) == pool.DIVERGED for path in paths):
                scores.setdefault(name, {})[value] = [self._score(path) for path in paths]
        return scores

    def reuse(self, chosen: Mapping[str, Mapping[str, str]], runs: Iterable[Path]) -> None:
        """Copies trials that are as long as runs to the runs' folders, so that nothing is trained twice.

        Each folder is `DIRECTORY/SETTING/SEED`.
        """
        for run in runs if self._whole else ():
            name = run.parent.name
            trial = self._folder(name, chosen[name][self.field], run.parents[1]) / run.name
            if pool.is_finished(trial) and not run.exists():
                copy = trial.with_name(f"{trial.name}.copy")  # renamed when it is complete
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(trial, copy)
                run.parent.mkdir(parents=True, exist_ok=True)
                copy.rename(run)

    @property
    def _whole(self) -> bool:
        return Fraction(self.length) == 1

    def _trial(self, request: Request, value: str, seed: int, directory: Path) -> tuple[Path, list[str]]:
        fields = {} if self._whole else {"train.length": request.length(Fraction(self.length))}
        path = self._folder(request.name, value, directory) / f"seed{seed}"
        return path, request.but(fields | {self.field: value, "seed": str(seed)}).flags

    def _folder(self, name: str, value: str, directory: Path) -> Path:
        return directory / FOLDER / name / f"{self.field.rpartition('.')[2]}={pool.name_of(value)}"

    def _score(self, path: Path) -> float | None:
        return read_result(path)["best"]["validation"][self.metric] if pool.is_finished(path) else None


def best(scores: Mapping[str, Scores], highest: bool = True) -> str:
    """Chooses the value with the best mean over seeds; values with which a seed diverged come last."""

    def mean(seeds: Scores) -> float:
        if None in seeds:
            return -math.inf
        return statistics.fmean(seeds) * (1 if highest else -1)

    return max(scores, key=lambda value: mean(scores[value]))


def all_diverged(scores: Mapping[str, Scores]) -> bool:
    """Tells whether a seed diverged with every value."""
    return all(None in seeds for seeds in scores.values())


def _beyond(values: Sequence[str], end: int) -> str:
    last, before = float(values[end]), float(values[1 if end == 0 else -2])
    return f"{last * last / before:.3g}"


def read(flags: argparse.Namespace, values: Sequence[str], example: Request, taken: Collection[str]) -> Tuning:
    """Checks `--tune`, whose values were split before, and the flags beside it.

    Args:
      example: A setting, whose task names the metric.
      taken: The fields that other flags decide.
    """
    field, beyond = flags.tune.partition("=")[0], int(flags.tune_beyond)
    check(Values, ",".join(values), f"--tune={field or 'FIELD'}")
    check(Part, flags.tune_length, "--tune-length")
    if field in (*taken, "train.length"):
        raise UsageError(f"--tune={field} cannot be: another flag decides {field}; leave one out.")
    configs = [example.but({field: value}).config for value in values]
    task = tasks.find(configs[0].task)
    rule = RULE + EXTENDED.format(beyond) * (beyond > 0)
    options = {"beyond": beyond, "rule": rule, "apart": flags.tune_apart}
    return Tuning(field, values, flags.tune_length, flags.tune_seeds, task.best, task.best_is_highest, **options)


def check_finite(name: str, values: Mapping[str, Scores]) -> None:
    """Raises a UsageError where a setting diverged with every value."""
    if all_diverged(values):
        raise UsageError(f"{name} cannot be trained with any of {', '.join(values)}: the loss was not finite.")
