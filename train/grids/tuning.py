"""Every setting of a sweep tried with the same values of one field, of which the best on validation data is chosen."""

import dataclasses
import math
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from attention.errors import UsageError
from attention.types import Rule, check
from train import loading, tasks
from train.config import durations
from train.grids import pool
from train.grids.matching import Request
from train.run.workdir import read_result

FOLDER = "tuning"  # of a sweep, which reports pass over
BEYOND = 2  # values that may be tried beyond the grid, unless something else is asked for
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
# From a setting and a value to the metric of each seed; None where the loss was not finite.
Tried = Mapping[str, Mapping[str, Sequence[float | None]]]


@dataclasses.dataclass(frozen=True)
class Tuning:
    """What is tried, as it is declared before anything is trained.

    Attributes:
      field: A leaf of the config.
      values: The grid: texts of rising numbers.
      length: Of a trial, a fraction of the run's.
      seeds: How many each value is tried with, from the config's on.
      metric: What chooses.
      highest: Whether its highest value is the best, or its lowest.
      beyond: How many values may be added to the grid.
      rule: In words.
    """

    field: str
    values: Sequence[str]
    length: str
    seeds: int
    metric: str
    highest: bool
    beyond: int = BEYOND
    rule: str = RULE + EXTENDED.format(BEYOND)

    @property
    def whole(self) -> bool:
        """Whether a trial is as long as a run, and so is the run of its value and seed."""
        return Fraction(self.length) == 1

    def grid(self, tried: Tried) -> list[str]:
        """The values to try, those beyond the ends that were declared included, as far as what was tried says."""
        values = list(self.values)
        while len(values) < len(self.values) + self.beyond and all(
            set(values) <= set(scores) for scores in tried.values()
        ):
            best = {self.best({value: scores[value] for value in values}) for scores in tried.values()}
            beyond = [_beyond(values, end) for end in (0, -1) if values[end] in best]
            if not beyond:
                break
            values = sorted([*values, *beyond], key=float)
        return values[: len(self.values) + self.beyond]

    def best(self, scores: Mapping[str, Sequence[float | None]]) -> str:
        """The value that is chosen."""
        means = {value: self._mean(seeds) for value, seeds in scores.items()}
        return max(means, key=means.__getitem__)

    def _mean(self, seeds: Sequence[float | None]) -> float:
        """The greater the better."""
        if None in seeds:
            return -math.inf
        return sum(seeds) / len(seeds) * (1 if self.highest else -1)


def read(
    field: str,
    values: Sequence[str],
    length: str,
    seeds: int,
    beyond: int,
    example: Request,
    taken: Collection[str],
) -> Tuning:
    """Reads `--tune` and the flags beside it.

    Args:
      field: A leaf of the config.
      values: Texts of numbers.
      length: Such as `1/3`.
      seeds: How many each value is tried with.
      beyond: How many values may be added.
      example: One of the settings, whose task names the metric.
      taken: Fields that something else decides.

    Raises:
      UsageError: values that are no rising numbers above 0, a field that is given elsewhere, or a wrong length.
    """
    check(Values, ",".join(values), f"--tune={field or 'FIELD'}")
    check(Part, length, "--tune-length")
    if field in (*taken, "train.length"):
        raise UsageError(f"--tune={field} cannot be: something else decides {field}; give it to one flag alone.")
    for value in values:
        config, _ = loading.resolve(example.spec, {**example.overrides, field: value})
    task = tasks.find(config.task)
    rule = RULE + EXTENDED.format(beyond) * (beyond > 0)
    return Tuning(field, tuple(values), length, seeds, task.best, task.best_is_highest, beyond, rule)


def trials(tuning: Tuning, requests: Iterable[Request], tried: Tried, seed: int, directory: Path) -> dict:
    """From a setting and a value to its runs, `{work directory: flags}`, of all that was not tried yet.

    Args:
      tuning: What is declared.
      requests: The settings that have no value yet.
      tried: What came of others.
      seed: The first.
      directory: Of the sweep.
    """
    requests = {request.name: request for request in requests}
    tried = {name: tried.get(name, {}) for name in requests}
    values = tuning.grid(tried)
    return {
        (name, value): dict(_trial(tuning, request, value, seed + index, directory) for index in range(tuning.seeds))
        for name, request in requests.items()
        for value in values
        if value not in tried[name]
    }


def scores(
    tuning: Tuning, tried: Tried, ended: Mapping[tuple[str, str], Iterable[Path]], outcomes: Mapping[Path, str]
) -> Tried:
    """What was tried before, and what has been since: trials that stopped or failed but for their loss are left out."""
    found = {name: dict(values) for name, values in tried.items()}
    for (name, value), paths in ended.items():
        if all(pool.is_finished(path) or outcomes.get(path) == pool.DIVERGED for path in paths):
            found.setdefault(name, {})[value] = [_score(tuning, path) for path in paths]
    return found


def reuse(tuning: Tuning, chosen: Mapping[str, Mapping[str, str]], runs: Iterable[Path]) -> None:
    """Copies trials that are runs to where these are to be, so that nothing is trained twice.

    Args:
      tuning: What was tried.
      chosen: The fields of each setting, the tuned one among them.
      runs: Work directories, as `DIRECTORY/SETTING/SEED`.
    """
    for run in runs:
        name = run.parent.name
        trial = _folder(tuning, name, chosen[name][tuning.field], run.parents[1]) / run.name
        if tuning.whole and pool.is_finished(trial) and not run.exists():
            copy = trial.with_name(f"{trial.name}.copy")  # renamed when it is whole
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(trial, copy)
            run.parent.mkdir(parents=True, exist_ok=True)
            copy.rename(run)


def check_finite(name: str, values: Mapping[str, Sequence[float | None]]) -> None:
    """Raises a UsageError where no value of a setting can be trained with."""
    if all(None in seeds for seeds in values.values()):
        raise UsageError(f"{name} cannot be trained with any of {', '.join(values)}: the loss was not finite.")


def _trial(tuning: Tuning, request: Request, value: str, seed: int, directory: Path) -> tuple[Path, list[str]]:
    fields = {**request.overrides, **({} if tuning.whole else {"train.length": _shorter(tuning, request)})}
    fields |= {tuning.field: value, "seed": str(seed)}
    path = _folder(tuning, request.name, value, directory) / f"seed{seed}"
    return path, [f"--config={request.spec}", *(f"--config.{field}={text}" for field, text in fields.items())]


def _shorter(tuning: Tuning, request: Request) -> str:
    length = durations.Duration.parse(loading.resolve(request.spec, request.overrides)[0].train.length, "train.length")
    return f"{float(length.amount * Fraction(tuning.length)):.4f} {length.unit}"


def _folder(tuning: Tuning, name: str, value: str, directory: Path) -> Path:
    return directory / FOLDER / name / f"{tuning.field.rpartition('.')[2]}={pool.name_of(value)}"


def _score(tuning: Tuning, path: Path) -> float | None:
    return read_result(path)["best"]["validation"][tuning.metric] if pool.is_finished(path) else None


def _beyond(values: Sequence[str], end: int) -> str:
    """One step further at the first or the last."""
    last, before = float(values[end]), float(values[1 if end == 0 else -2])
    return f"{last * last / before:.3g}"
