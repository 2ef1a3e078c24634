"""The cells of a table of trials: one mechanism in one trial, its runs and its results."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from models.files import read_text
from train.cli.files import read_record, write_json
from train.config.schema import Config
from train.grids import pool, running, tuning
from train.grids.matching import Request
from train.grids.trial_table import MADE, TrialTable
from train.loading.leaves import flatten
from train.run.workdir import read_config, read_result

TABLE = "trials.json"
DIVERGED = "diverged.json"  # in a cell's folder: the runs that diverged
Tried = dict[str, list[float | None]]  # the validation accuracies with each rate; None where a run diverged
RATE = "optimizer.learning_rate"
OWN = ("model.attention", RATE)  # the settings in which a trial's cells differ
SECTIONS = ("data", "model", "optimizer", "train")
ABOUT = ("parameters", "forward_flops_per_example")  # copied from a result into its cell, as are cache sizes
CACHE = "cache_bytes"
DIGITS = 5  # decimals of accuracies


@dataclasses.dataclass(frozen=True)
class Cell:
    """A mechanism in a trial, and how it is tried."""

    trial: str
    spec: str
    directory: Path  # the table's folder
    rates: tuple[str, ...]  # learning rates to choose from
    tuning_seeds: int  # number of seeds that each rate is tried with
    seeds: int  # number of seeds tested
    full: bool = False  # whether it has the published size

    @property
    def request(self) -> Request:
        """The config of its runs."""
        return self._trial.but({"model.attention": self.spec})

    @property
    def _trial(self) -> Request:  # with any mechanism
        config = f"configs/trial_{'published' if self.full else 'cpu'}.py:{self.trial}"
        return Request(f"{self.trial} {self.spec}", config, {})

    def tuning(self) -> dict[Path, list[str]]:
        """Lists the runs that choose a rate, whose seeds are never tested."""
        seeds = range(tuning.APART, tuning.APART + self.tuning_seeds)
        return {self._run(rate, seed): self._flags(rate, seed) for rate in self.rates for seed in seeds}

    def tested(self, rate: str) -> dict[Path, list[str]]:
        """Lists the runs that are tested with the chosen rate."""
        return {self._run(rate, seed): self._flags(rate, seed) for seed in range(self.seeds)}

    def left(self, runs: running.Runs) -> dict[Path, Sequence[str]]:
        """Leaves out runs that have diverged; raises UsageError where one was trained with other settings."""
        now = plain_settings(self._trial.config)
        for path in filter(pool.is_finished, runs):
            then = plain_settings(read_config(path))
            for name in sorted(now.keys() & then.keys()):
                if now[name] != then[name]:
                    raise UsageError(
                        f"{path} was trained with {name}={then[name]!r}, which is {now[name]!r} now; give another "
                        "--workdir."
                    )
        diverged = self._diverged
        return {path: flags for path, flags in runs.items() if path not in diverged}

    def note(self, outcomes: Mapping[Path, str]) -> None:
        """Records which runs diverged, so that they are not trained again."""
        new = {path for path, outcome in outcomes.items() if outcome == pool.DIVERGED and self._folder in path.parents}
        if new:
            self._folder.mkdir(parents=True, exist_ok=True)
            names = sorted(str(path.relative_to(self._folder)) for path in new | self._diverged)
            write_json(self._folder / DIVERGED, names)

    def tried(self) -> Tried:
        """Reads the validation accuracies with each rate; returns {} until all runs have ended."""
        diverged, seeds = self._diverged, range(tuning.APART, tuning.APART + self.tuning_seeds)
        if not all(pool.is_finished(path) or path in diverged for path in self.tuning()):
            return {}
        return {rate: [_validated(self._run(rate, seed)) for seed in seeds] for rate in self.rates}

    def table(self, reason: str = "") -> TrialTable:
        """Makes the table of this cell alone; where it has no accuracy yet, it has the reason instead."""
        tried = {} if reason else self.tried()
        if not reason and not tried:
            reason = "not all rates have been tried"
        elif not reason and tuning.all_diverged(tried):
            reason = "with every rate, the loss of a seed was not finite"
        elif not reason:
            rate, diverged = best(tried), self._diverged
            paths = list(self.tested(rate))
            results = {path: read_result(path) for path in paths if pool.is_finished(path)}
            if not results or not all(path in results or path in diverged for path in paths):
                reason = f"{len(results)} of {self.seeds} seeds have finished"
        if reason:
            return TrialTable({}, [{"trial": self.trial, "spec": self.spec, "reason": reason}], [])
        first = next(iter(results.values()))
        chance = first["baselines"]["chance_accuracy"]
        row = {"trial": self.trial, "spec": self.spec, "tried": tried, "rate": rate, "seeds": list(range(self.seeds))}
        row |= _reached(paths, results, chance)
        row |= {name: value for name, value in first.items() if name in ABOUT or name.startswith(CACHE)}
        row["seconds"] = round(sum(result["seconds"] for result in results.values()), 1)
        made = [{name: result[name] for name in MADE} for result in results.values()]
        return TrialTable({self.trial: {"settings": self.settings(), "chance": chance}}, [row], made)

    def settings(self) -> dict[str, Any]:
        """Lists the settings that all cells of its trial share."""
        tuning = {"tuning.rates": [float(rate) for rate in self.rates], "tuning.seeds": self.tuning_seeds}
        return plain_settings(self._trial.config) | tuning

    def _flags(self, rate: str, seed: int) -> list[str]:
        return self.request.but({RATE: rate, "seed": str(seed)}).flags

    def _run(self, rate: str, seed: int) -> Path:
        return self._folder / f"rate={rate}" / f"seed{seed}"

    @property
    def _diverged(self) -> set[Path]:
        file = self._folder / DIVERGED
        return {self._folder / name for name in json.loads(read_text(file))} if file.is_file() else set()

    @property
    def _folder(self) -> Path:
        return self.directory / self.trial / pool.name_of(self.spec)


def best(tried: Tried) -> str:
    """Chooses the best rate, of equal ones the lowest; see `tuning.best`."""
    return tuning.best({rate: tried[rate] for rate in sorted(tried, key=float)})


def plain_settings(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Lists the settings that a trial's cells share, by path, as JSON holds them."""
    plain = dataclasses.asdict(config) if isinstance(config, Config) else config
    settings = flatten({name: plain[name] for name in SECTIONS})
    return json.loads(json.dumps({name: value for name, value in settings.items() if name not in OWN}))


def _reached(paths: Sequence[Path], results: Mapping[Path, Any], chance: float) -> dict[str, Any]:
    """Lists each seed's accuracies, on test data and at each evaluation; a seed that diverged counts as chance."""
    tests = [results[path]["best"]["test"] if path in results else {} for path in paths]
    names = dict.fromkeys(name for test in tests for name in test if name.startswith("accuracy"))
    curves = [_curve(path) if path in results else {} for path in paths]
    steps = sorted({step for curve in curves for step in curve})
    return {name: [round(test.get(name, chance), DIGITS) for test in tests] for name in names} | {
        "diverged": len(paths) - len(results),
        "steps": steps,
        "curves": [[round(curve.get(step, chance), DIGITS) for step in steps] for curve in curves],
    }


def _curve(path: Path) -> dict[int, float]:
    """Reads the accuracies on validation data, by step."""
    return {line["step"]: line["accuracy"] for line in read_record(path) if line["split"] == "validation"}


def _validated(path: Path) -> float | None:
    if not pool.is_finished(path):
        return None
    return round(read_result(path)["best"]["validation"]["accuracy"], DIGITS)
