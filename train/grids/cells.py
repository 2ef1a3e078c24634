"""The cells of a table of trials: what a mechanism reached in a trial, and what stands beside it."""

import dataclasses
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from attention.errors import UsageError
from attention.types import build, fits
from models.files import read_json, read_text
from train import loading
from train.cli.files import write_json
from train.grids import pool, running
from train.grids.matching import Request
from train.loading.leaves import flatten
from train.run.workdir import read_config, read_result

TABLE = "trials.json"
SOLVED = 0.99  # from this accuracy on, a seed has solved a trial
TUNING = 2**20  # the first of the seeds on which rates are chosen, more than can be tested
DIVERGED = "diverged.json"  # in the folder of a cell
MADE = ("versions", "devices", "git", "matmul_precision")  # of a result, with what it was made
Tried = dict[str, list[float | None]]  # the validation accuracies of each rate
RATE = "optimizer.learning_rate"
OWN = ("model.attention", "model.name", RATE)  # settings in which the cells of a trial may differ
WIDTH = 12  # of a column, in letters, at least


def known() -> list[str]:
    """Lists the trials that have a config, by their names."""
    return [path.stem.removeprefix("trial_") for path in loading.files() if path.stem.startswith("trial_")]


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a learning rate is chosen for each cell."""

    rates: tuple[str, ...]
    seeds: int  # each rate is tried with so many, from TUNING on

    def __post_init__(self):
        try:
            numbers = list(map(float, self.rates))
        except ValueError:
            numbers = [0.0]
        if not all(0 < number < math.inf for number in numbers) or len(set(numbers)) < len(numbers):
            given = ",".join(self.rates)
            raise UsageError(f"--rates must be different numbers above 0, such as 1e-3,3e-3, but it is {given!r}.")


@dataclasses.dataclass(frozen=True)
class Cell:
    """A mechanism in a trial, in the folder of a table."""

    trial: str
    spec: str
    directory: Path

    @property
    def request(self) -> Request:
        """Its config."""
        return Request(f"{self.trial} {self.spec}", f"configs/trial_{self.trial}.py", {"model.attention": self.spec})

    def tuning(self, choice: Choice) -> dict[Path, list[str]]:
        """Lists the runs that choose a rate, on seeds of their own."""
        seeds = range(TUNING, TUNING + choice.seeds)
        return {self._run(rate, seed): self._flags(rate, seed) for rate in choice.rates for seed in seeds}

    def tested(self, rate: str, seeds: int) -> dict[Path, list[str]]:
        """Lists the runs that are tested, with the rate that was chosen."""
        return {self._run(rate, seed): self._flags(rate, seed) for seed in range(seeds)}

    def left(self, runs: running.Runs) -> dict[Path, Sequence[str]]:
        """Leaves out the runs that diverged before."""
        diverged = self._diverged
        return {path: flags for path, flags in runs.items() if str(path.relative_to(self._folder)) not in diverged}

    def note(self, outcomes: Mapping[Path, str]) -> None:
        """Keeps which runs diverged, so that they are not trained again."""
        new = [path for path, outcome in outcomes.items() if outcome == pool.DIVERGED and self._folder in path.parents]
        if new:
            names = {str(path.relative_to(self._folder)) for path in new}
            self._folder.mkdir(parents=True, exist_ok=True)
            write_json(self._folder / DIVERGED, sorted(names.union(self._diverged)))

    def tried(self, choice: Choice) -> Tried:
        """Reads the validation accuracies of each rate, None where a run diverged; {} until all have ended."""
        found: dict[str, list[float | None]] = {rate: [] for rate in choice.rates}
        for rate in choice.rates:
            for seed in range(TUNING, TUNING + choice.seeds):
                path = self._run(rate, seed)
                if not (pool.is_finished(path) or self._has_diverged(path)):
                    return {}
                finished = pool.is_finished(path)
                found[rate].append(read_result(path)["best"]["validation"]["accuracy"] if finished else None)
        return found

    def row(self, choice: Choice, seeds: int, reason: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Makes the cell of the table, or its reason where there is none yet, and says with what it was made."""
        where = {"trial": self.trial, "spec": self.spec}
        tried = {} if reason else self.tried(choice)
        if not tried:
            return where | {"reason": reason or "not all rates have been tried"}, []
        if all_diverged(tried):
            return where | {"reason": "the loss was not finite with any rate"}, []
        rate = best(tried)
        paths = list(self.tested(rate, seeds))
        finished = [path for path in paths if pool.is_finished(path)]
        if not finished or any(path not in finished and not self._has_diverged(path) for path in paths):
            return where | {"reason": f"{len(finished)} of {seeds} seeds have finished"}, []
        results, config = {path: read_result(path) for path in finished}, read_config(finished[0])
        tests = [results[path]["best"]["test"] if path in results else {} for path in paths]
        first = results[finished[0]]
        names = [name for name in first["best"]["test"] if name.startswith("accuracy")]
        settings = json.loads(json.dumps({name: config[name] for name in ("data", "model", "optimizer", "train")}))
        about = ("parameters", "forward_flops_per_example", "cache_bytes")
        row = where | {
            "settings": settings | {"choice": {"rates": list(choice.rates), "seeds": choice.seeds}},
            "tried": tried,
            "rate": rate,
            "seeds": list(range(seeds)),
            **{name: [test.get(name) for test in tests] for name in names},
            "chance": first["baselines"]["chance_accuracy"],
            **{name: first[name] for name in about if name in first},
            "seconds": sum(result["seconds"] for result in results.values()),
        }
        return row, [{name: result[name] for name in MADE} for result in results.values()]

    def _flags(self, rate: str, seed: int) -> list[str]:
        return self.request.but({RATE: rate, "seed": str(seed)}).flags

    def _run(self, rate: str, seed: int) -> Path:
        return self._folder / f"rate={rate}" / f"seed{seed}"

    def _has_diverged(self, path: Path) -> bool:
        return str(path.relative_to(self._folder)) in self._diverged

    @property
    def _diverged(self) -> list[str]:
        file = self._folder / DIVERGED
        return json.loads(read_text(file)) if file.is_file() else []

    @property
    def _folder(self) -> Path:
        return self.directory / self.trial / pool.name_of(self.spec)


def all_diverged(tried: Tried) -> bool:
    """Tells whether no rate went well with all seeds."""
    return all(None in scores for scores in tried.values())


def best(tried: Mapping[str, Sequence[float | None]]) -> str:
    """Chooses the rate of the best mean; one with which a seed diverged comes last, and of equal ones the lowest."""

    def mean(rate: str) -> tuple[float, float]:
        scores = tried[rate]
        return (-math.inf if None in scores else statistics.fmean(scores)), -float(rate)

    return max(tried, key=mean)


@dataclasses.dataclass(frozen=True)
class TrialTable:
    """The cells of one or several calls, as `trials.json` holds them."""

    rows: list[dict[str, Any]]
    made: list[dict[str, Any]]  # versions, devices and revisions of the runs

    @classmethod
    def of(cls, rows: Iterable[dict[str, Any]], made: Iterable[dict[str, Any]]) -> "TrialTable":
        """Makes a table; what is said twice of how it was made is said once."""
        calls = list(made)
        return cls(list(rows), [call for number, call in enumerate(calls) if call not in calls[:number]])

    @classmethod
    def read(cls, path: Path) -> "TrialTable":
        """Reads a table; raises a UsageError where the file holds none."""
        table = build(cls, read_json(path, "give a table that train.trials wrote"), str(path))
        if not all(map(_is_row, table.rows)) or not all(fits(Made, call) for call in table.made):
            raise UsageError(f"{path} is no table of trials, or it was damaged; make it anew with train.trials.")
        return table

    @classmethod
    def merged(cls, tables: Sequence["TrialTable"]) -> "TrialTable":
        """Joins tables; raises a UsageError where the cells of a trial were made otherwise, or a cell stands twice."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        first: dict[str, dict[str, Any]] = {}
        for row in (row for table in tables for row in table.rows):
            where = row["trial"], row["spec"]
            if "reason" in row:
                rows.setdefault(where, row)
                continue
            if where in rows and "reason" not in rows[where] and rows[where] != row:
                raise UsageError(f"Two tables have {row['spec']} in the trial {row['trial']}; remove it from one file.")
            rows[where], settings = row, flatten(row["settings"])
            there = first.setdefault(row["trial"], settings)
            for name in sorted(there | settings):
                if name not in OWN and there.get(name) != settings.get(name):
                    raise UsageError(
                        f"The tables do not compare: in the trial {row['trial']}, {name} was {there.get(name)!r} and "
                        f"{settings.get(name)!r}; make one of them anew."
                    )
        return cls.of(rows.values(), (call for table in tables for call in table.made))

    def without(self, cells: Iterable[Cell]) -> "TrialTable":
        """Leaves out some cells."""
        asked = {(cell.trial, cell.spec) for cell in cells}
        return TrialTable([row for row in self.rows if (row["trial"], row["spec"]) not in asked], self.made)

    def write(self, path: Path) -> None:
        """Writes the table to a file."""
        write_json(path, dataclasses.asdict(self))

    def text(self) -> str:
        """Writes a line for each mechanism: the mean accuracy in each trial, and how many seeds solved it."""
        trials = list(dict.fromkeys(row["trial"] for row in self.rows))
        cells = {(row["spec"], row["trial"]): _short(row) for row in self.rows}
        specs = list(dict.fromkeys(row["spec"] for row in self.rows))
        first, width = max(map(len, (*specs, "chance"))), max(WIDTH, *(len(trial) + 2 for trial in trials))
        chance = {row["trial"]: f"{row['chance']:.2f}" for row in self.rows if "chance" in row}
        lines = [("", trials), *((spec, [cells.get((spec, trial), "") for trial in trials]) for spec in specs)]
        lines.append(("chance", [chance.get(trial, "") for trial in trials]))
        text = [f"{name:<{first}}  {''.join(f'{cell:<{width}}' for cell in of)}".rstrip() for name, of in lines]
        reasons = [f"{row['spec']}, {row['trial']}: {row['reason']}" for row in self.rows if "reason" in row]
        differ = [name for name in MADE if len({str(call[name]) for call in self.made}) > 1]
        notes = [f"The runs were made with different {', '.join(differ)}."] if differ else []
        return "\n".join([*text, "Accuracy at the best step, mean over seeds; how many solved it.", *reasons, *notes])


class Made(TypedDict):
    """How runs were made."""

    versions: Mapping
    devices: str
    git: str
    matmul_precision: str


def _is_row(row: Any) -> bool:
    where = fits(Mapping, row) and all(isinstance(row.get(name), str) for name in ("trial", "spec"))
    if not where or "reason" in row:
        return where and isinstance(row["reason"], str)
    accuracies = row.get("accuracy")
    numbers = isinstance(accuracies, list) and all(a is None or isinstance(a, float) for a in accuracies)
    good = numbers and any(a is not None for a in accuracies) and isinstance(row.get("settings"), dict)
    return good and isinstance(row.get("chance"), float) and isinstance(row.get("rate"), str)


def _short(row: Mapping[str, Any]) -> str:
    if "reason" in row:
        return "-"
    finite = [accuracy for accuracy in row["accuracy"] if accuracy is not None]
    solved = sum(accuracy >= SOLVED for accuracy in finite)
    return f"{statistics.fmean(finite):.2f} {solved}/{len(row['accuracy'])}"
