"""The cells of a table of trials: what a mechanism reached in a trial, and what stands beside it."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from attention.errors import UsageError
from attention.types import Rule, check
from models.files import read_text
from train.cli.files import read_record, write_json
from train.config.schema import Config
from train.grids import pool, running
from train.grids.matching import Request
from train.grids.trial_table import MADE, TrialTable
from train.grids.tuning import APART
from train.loading.leaves import flatten
from train.run.workdir import read_config, read_result

TABLE = "trials.json"
DIVERGED = "diverged.json"  # in the folder of a cell
Rates = Annotated[str, Rule("different numbers above 0, such as 1e-3,3e-3", lambda text: _differ(text.split(",")))]
Tried = dict[str, list[float | None]]  # the validation accuracies of each rate
RATE = "optimizer.learning_rate"
OWN = ("model.attention", RATE)  # settings in which the cells of a trial differ
SECTIONS = ("data", "model", "optimizer", "train")
ABOUT = ("parameters", "forward_flops_per_example")  # of a result, beside bytes of decode caches
CACHE = "cache_bytes"
DIGITS = 5  # of accuracies


def _differ(rates: Sequence[str]) -> bool:
    numbers = set(map(float, rates))
    return all(0 < number < math.inf for number in numbers) and len(numbers) == len(rates)


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a learning rate is chosen for each cell."""

    rates: tuple[str, ...]
    seeds: int  # each rate is tried with so many, from APART on

    def __post_init__(self):
        check(Rates, ",".join(self.rates), "--rates")

    @property
    def plain(self) -> dict[str, Any]:
        """What a table says of it."""
        return {"tuning.rates": [float(rate) for rate in self.rates], "tuning.seeds": self.seeds}


@dataclasses.dataclass(frozen=True)
class Cell:
    """A mechanism in a trial, in the folder of a table; `full` is at the published size."""

    trial: str
    spec: str
    directory: Path
    full: bool = False

    @property
    def request(self) -> Request:
        """Its config."""
        return self._shared.but({"model.attention": self.spec})

    @property
    def _shared(self) -> Request:  # the config of its trial, with whatever mechanism
        config = f"configs/trial_{'published' if self.full else 'cpu'}.py:{self.trial}"
        return Request(f"{self.trial} {self.spec}", config, {})

    def tuning(self, choice: Choice) -> dict[Path, list[str]]:
        """Lists the runs that choose a rate, on seeds of their own."""
        seeds = range(APART, APART + choice.seeds)
        return {self._run(rate, seed): self._flags(rate, seed) for rate in choice.rates for seed in seeds}

    def tested(self, rate: str, seeds: int) -> dict[Path, list[str]]:
        """Lists the runs that are tested, with the rate that was chosen."""
        return {self._run(rate, seed): self._flags(rate, seed) for seed in range(seeds)}

    def left(self, runs: running.Runs) -> dict[Path, Sequence[str]]:
        """Leaves out the runs that diverged before; raises UsageError where one was trained with other settings."""
        diverged = self._diverged
        now = plain_settings(self._shared.config)
        for path in filter(pool.is_finished, runs):
            then = plain_settings(read_config(path))
            for name in sorted(now.keys() & then.keys()):
                if now[name] != then[name]:
                    raise UsageError(
                        f"{path} was trained with {name}={then[name]!r}, which is {now[name]!r} now; give another "
                        "--workdir."
                    )
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
        paths = {rate: [self._run(rate, APART + seed) for seed in range(choice.seeds)] for rate in choice.rates}
        if not all(pool.is_finished(path) or self._has_diverged(path) for of in paths.values() for path in of):
            return {}
        return {rate: [_tuned(path) if pool.is_finished(path) else None for path in of] for rate, of in paths.items()}

    def table(self, choice: Choice, seeds: int, reason: str) -> TrialTable:
        """Makes a table of this cell, with its reason where there is no accuracy yet."""
        where = {"trial": self.trial, "spec": self.spec}
        tried = {} if reason else self.tried(choice)
        reason = reason or _left_to_try(tried)
        paths = [] if reason else list(self.tested(best(tried), seeds))
        finished = [path for path in paths if pool.is_finished(path)]
        ended = [path for path in paths if path in finished or self._has_diverged(path)]
        if not reason and not (finished and len(ended) == seeds):
            reason = f"{len(finished)} of {seeds} seeds have finished"
        if reason:
            return TrialTable({}, [where | {"reason": reason}], [])
        results = {path: read_result(path) for path in finished}
        first = results[finished[0]]
        about = {name: value for name, value in first.items() if name in ABOUT or name.startswith(CACHE)}
        found = {"tried": tried, "rate": best(tried), "seeds": list(range(seeds))}
        chance = first["baselines"]["chance_accuracy"]
        row = where | found | self._reached(paths, results, chance) | about
        row["seconds"] = round(sum(result["seconds"] for result in results.values()), 1)
        settings = {"settings": self.settings(choice), "chance": chance}
        made = [{name: result[name] for name in MADE} for result in results.values()]
        return TrialTable({self.trial: settings}, [row], made)

    def settings(self, choice: Choice) -> dict[str, Any]:
        """Lists what the cells of its trial have in common."""
        return plain_settings(self._shared.config) | choice.plain

    def _reached(self, paths: Sequence[Path], results: Mapping[Path, Any], chance: float) -> dict[str, Any]:
        """Lists the accuracies of each seed on the test and at each evaluation; a seed that diverged has chance."""
        tests = [results[path]["best"]["test"] if path in results else {} for path in paths]
        names = dict.fromkeys(name for test in tests for name in test if name.startswith("accuracy"))
        curves = [_curve(path) if path in results else {} for path in paths]
        steps = sorted({step for curve in curves for step in curve})
        return {name: [round(test.get(name, chance), DIGITS) for test in tests] for name in names} | {
            "diverged": sum(path not in results for path in paths),
            "steps": steps,
            "curves": [[round(curve.get(step, chance), DIGITS) for step in steps] for curve in curves],
        }

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


def _left_to_try(tried: Tried) -> str:
    if not tried:
        return "not all rates have been tried"
    return "with every rate, the loss of a seed was not finite" if all_diverged(tried) else ""


def all_diverged(tried: Tried) -> bool:
    """Tells whether no rate went well with all seeds."""
    return all(None in scores for scores in tried.values())


def best(tried: Mapping[str, Sequence[float | None]]) -> str:
    """Chooses the rate of the best mean; one with which a seed diverged comes last, and of equal ones the lowest."""

    def mean(rate: str) -> tuple[float, float]:
        scores = tried[rate]
        return (-math.inf if None in scores else statistics.fmean(scores)), -float(rate)

    return max(tried, key=mean)


def plain_settings(config: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Lists the settings that the cells of a trial share, by their paths and as JSON has them."""
    plain = dataclasses.asdict(config) if isinstance(config, Config) else config
    settings = flatten({name: plain[name] for name in SECTIONS})
    return json.loads(json.dumps({name: value for name, value in settings.items() if name not in OWN}))


def _curve(path: Path) -> dict[int, float]:
    """Reads the accuracies on validation data by the step."""
    return {line["step"]: line["accuracy"] for line in read_record(path) if line["split"] == "validation"}


def _tuned(path: Path) -> float:
    return round(read_result(path)["best"]["validation"]["accuracy"], DIGITS)
