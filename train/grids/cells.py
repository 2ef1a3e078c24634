"""The cells of a table of trials: what a mechanism reached in a trial, and what stands beside it."""

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from attention.types import build
from models.files import read_json
from train.cli.files import write_json
from train.grids import pool
from train.grids.matching import Request
from train.loading import PACKAGE
from train.loading.leaves import flatten
from train.run.workdir import environment, read_config, read_result

TABLE = "trials.json"
SOLVED = 0.99  # from this accuracy on, a seed has solved a trial
TUNING = 1000  # the first of the seeds on which rates are chosen, which are not tested
RATE = "optimizer.learning_rate"
OWN = ("model.attention", "model.name", RATE)  # settings in which the cells of a trial may differ
WIDTH = 12  # of a column, in letters


def known() -> list[str]:
    """Lists the trials that have a config, by their names."""
    return sorted(path.stem.removeprefix("trial_") for path in (PACKAGE / "configs").glob("trial_*.py"))


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

    def tuning(self, rates: Iterable[str], seeds: int) -> dict[Path, list[str]]:
        """Lists the runs that choose a rate, on seeds of their own."""
        return {
            self._folder / "tuning" / f"rate={rate}" / f"seed{seed}": self._flags(rate, seed)
            for rate in rates
            for seed in range(TUNING, TUNING + seeds)
        }

    def tested(self, rate: str, seeds: int) -> dict[Path, list[str]]:
        """Lists the runs that are tested, with the rate that was chosen."""
        return {self._folder / f"seed{seed}": self._flags(rate, seed) for seed in range(seeds)}

    def tried(self, rates: Iterable[str], seeds: int) -> dict[str, list[float | None]]:
        """Reads the validation accuracies of each rate; None where a loss was not finite."""
        found: dict[str, list[float | None]] = {rate: [] for rate in rates}
        for path, flags in self.tuning(rates, seeds).items():
            rate = next(flag.partition("=")[2] for flag in flags if RATE in flag)
            finished = pool.is_finished(path)
            found[rate].append(read_result(path)["best"]["validation"]["accuracy"] if finished else None)
        return found

    def row(self, tried: Mapping[str, Sequence[float | None]], seeds: int, reason: str) -> dict[str, Any]:
        """Makes the cell of the table; without results it has the reason alone."""
        where = {"trial": self.trial, "spec": self.spec}
        rate = best(tried) if tried else ""
        paths = [path for path in (self.tested(rate, seeds) if rate else ()) if pool.is_finished(path)]
        if not paths:
            return where | {"reason": reason or "no run has finished"}
        results, config = [read_result(path) for path in paths], read_config(paths[0])
        tests = [result["best"]["test"] for result in results]
        of_sizes = {name: [test[name] for test in tests] for name in tests[0] if name.startswith("accuracy")}
        about = ("parameters", "forward_flops_per_example", "cache_bytes")
        return where | {
            "settings": {name: config[name] for name in ("data", "model", "optimizer", "train")},
            "tried": tried,
            "rate": rate,
            "seeds": [int(path.name.removeprefix("seed")) for path in paths],
            **of_sizes,
            "chance": results[0]["baselines"]["chance_accuracy"],
            **{name: results[0][name] for name in about if name in results[0]},
            "seconds": sum(result["seconds"] for result in results),
        }

    def _flags(self, rate: str, seed: int) -> list[str]:
        return self.request.but({RATE: rate, "seed": str(seed)}).flags

    @property
    def _folder(self) -> Path:
        return self.directory / self.trial / pool.name_of(self.spec)


def best(tried: Mapping[str, Sequence[float | None]]) -> str:
    """Chooses the rate of the best mean; one with which a seed diverged comes last, and of equal ones the lowest."""

    def mean(rate: str) -> tuple[float, float]:
        scores = tried[rate]
        return (-math.inf if None in scores else statistics.fmean(scores)), -float(rate)

    return max(tried, key=mean)


def check_rates(rates: Sequence[str]) -> None:
    """Raises a UsageError unless rates are different numbers above 0."""
    try:
        good = all(0 < float(rate) < math.inf for rate in rates) and len(set(map(float, rates))) == len(rates)
    except ValueError:
        good = False
    if not good:
        raise UsageError(
            f"--rates must be different numbers above 0, such as 1e-3,3e-3, but it is {','.join(rates)!r}."
        )


@dataclasses.dataclass(frozen=True)
class TrialTable:
    """The cells of one or several calls, as `trials.json` holds them."""

    rows: list[dict[str, Any]]
    made: list[dict[str, Any]]  # versions, devices and revision of each call

    @classmethod
    def of(cls, rows: list[dict[str, Any]]) -> "TrialTable":
        """Makes the table of this call."""
        return cls(rows, [environment()])

    @classmethod
    def read(cls, path: Path) -> "TrialTable":
        """Reads a table; raises a UsageError where the file holds none."""
        table = build(cls, read_json(path, "give a table that train.trials wrote"), str(path))
        for row in table.rows:
            if not {"trial", "spec"} <= row.keys() or not (
                "reason" in row or {"accuracy", "settings", "rate"} <= row.keys()
            ):
                raise UsageError(f"{path} is no table of trials: a row has only {', '.join(row) or 'nothing'}.")
        return table

    @classmethod
    def merged(cls, tables: Sequence["TrialTable"]) -> "TrialTable":
        """Joins tables; raises a UsageError where the cells of a trial were made otherwise, or a cell stands twice."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        first: dict[str, dict[str, Any]] = {}
        for row in (row for table in tables for row in table.rows):
            where = row["trial"], row["spec"]
            if where in rows and rows[where] != row:
                raise UsageError(f"Two tables have {row['spec']} in the trial {row['trial']}; leave one out.")
            rows[where] = row
            settings = flatten(row.get("settings", {}))
            there = first.setdefault(row["trial"], settings) or settings
            for name in sorted(there | settings) if settings else ():
                if name not in OWN and there.get(name) != settings.get(name):
                    raise UsageError(
                        f"The tables do not compare: in the trial {row['trial']}, {name} was {there.get(name)!r} and "
                        f"{settings.get(name)!r}; make one of them anew."
                    )
        made = [call for table in tables for call in table.made]
        return cls(list(rows.values()), [call for n, call in enumerate(made) if call not in made[:n]])

    def write(self, path: Path) -> None:
        """Writes the table to a file."""
        write_json(path, dataclasses.asdict(self))

    def text(self) -> str:
        """Writes a line for each mechanism: the mean accuracy in each trial, and how many seeds solved it."""
        trials = list(dict.fromkeys(row["trial"] for row in self.rows))
        cells = {(row["spec"], row["trial"]): _short(row) for row in self.rows}
        specs = list(dict.fromkeys(row["spec"] for row in self.rows))
        width = max(map(len, (*specs, "chance")))
        chance = {row["trial"]: f"{row['chance']:.2f}" for row in self.rows if "chance" in row}
        lines = [("", trials), *((spec, [cells.get((spec, trial), "") for trial in trials]) for spec in specs)]
        lines.append(("chance", [chance.get(trial, "") for trial in trials]))
        text = "\n".join(
            f"{name:<{width}}  " + "".join(f"{cell:<{WIDTH}}" for cell in of).rstrip() for name, of in lines
        )
        reasons = {f"{row['spec']}, {row['trial']}: {row['reason']}": None for row in self.rows if "reason" in row}
        versions = {tuple(sorted(call["versions"].items())) for call in self.made}
        notes = [*reasons, *(["The calls had different versions of packages."] if len(versions) > 1 else [])]
        return "\n".join([text, "Accuracy at the best step, mean over seeds; how many solved it.", *notes])


def _short(row: Mapping[str, Any]) -> str:
    if "reason" in row:
        return "-"
    accuracies = row["accuracy"]
    solved = sum(accuracy >= SOLVED for accuracy in accuracies)
    return f"{statistics.fmean(accuracies):.2f} {solved}/{len(accuracies)}"
