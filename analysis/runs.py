"""Finished runs, read from work directories or archives and grouped by their settings."""

import dataclasses
import itertools
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import archive, metrics
from analysis.archive import Entry
from attention.errors import UsageError, in_line
from train.loading.leaves import NOT_SETTINGS
from train.run.results import lines_of_replica

MECHANISM = "model.attention"


@dataclasses.dataclass(frozen=True)
class Run:
    """One seed of one setting.

    Attributes:
      path: Its work directory.
      seed: The config's seed, plus the number of the replica where seeds were trained together.
      settings: The config's leaves that make a setting, by their path; the seed is not one of them.
      result: This seed's part of `result.json`.
      record: This seed's lines of `metrics.jsonl`, with its share of the seconds.
      together: Number of seeds trained in one program; `result["seconds"]` is the time of all of them.
    """

    path: Path
    seed: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    record: Sequence[Mapping[str, Any]]
    together: int

    def value(self, metric: str, split: str = "test") -> float:
        """Looks up a cost of the whole run, or a metric of a split at the best step; NaN if the run has none."""
        if metric in metrics.COSTS:
            return self.result.get(metric, math.nan)
        if split == "train":
            return self._train_line().get(metric, math.nan)
        return self.result["best"][split].get(metric, math.nan)

    @property
    def seconds(self) -> float:
        """Seconds of training, shared equally by seeds that were trained together."""
        return self.result["seconds"] / self.together

    @property
    def examples(self) -> int:
        """Number of training examples seen."""
        return self.result["steps"] * self.settings["data.batch_size"]

    @property
    def flops(self) -> float:
        """Operations of all forward and backward passes in training; NaN if the result lacks them."""
        return self.examples * self.result.get(archive.FLOPS, math.nan)

    def curve(self, metric: str) -> list[tuple[int, float, float]]:
        """Lists the step, seconds and value of every evaluation on validation data."""
        lines = (line for line in self.record if line["split"] == "validation" and metric in line)
        return [(line["step"], line["seconds"], line[metric]) for line in lines]

    def late_change(self, metric: str) -> float:
        """Measures how a validation metric changed in the last fifth of training; NaN without two evaluations.

        The value where the last fifth begins is interpolated linearly.
        """
        curve = self.curve(metric)
        if len(curve) < 2:
            return math.nan
        steps, _, values = zip(*curve, strict=True)
        return values[-1] - float(np.interp(0.8 * steps[-1], steps, values))

    def _train_line(self) -> Mapping[str, Any]:
        """Finds the line of the last whole epoch up to the best step or, without one, the last log line up to it."""
        best = self.result["best_step"]
        lines = [line for line in self.record if line["step"] <= best]
        last = {line["split"]: line for line in lines if line["split"] in ("train", "epoch")}
        return last.get("epoch", last.get("train", {}))


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, in the order of their seeds.

    Attributes:
      label: A few words that tell it from the other groups.
      settings: The values of all fields that differ between the groups, by their path.
      runs: One run or more.
    """

    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of its runs."""
        return tuple(run.seed for run in self.runs)


@dataclasses.dataclass(frozen=True)
class Found:
    """Groups of runs.

    Attributes:
      groups: The groups, ordered by their keys.
      keys: The fewest fields that tell the groups apart; all other differences follow from them.
      sweeps: See `archive.Finished`.
      left_out: A sentence for each folder that is not a finished run.
    """

    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    sweeps: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()


def find(places: Sequence[Path]) -> Found:
    """Finds all finished runs in archives, and in folders and the folders below them.

    Raises:
      UsageError: See `archive.find`; or two runs have the same settings and seed.
    """
    return of(archive.find(places))


def of(finished: archive.Finished) -> Found:
    """Groups finished runs by their settings.

    Raises:
      UsageError: Two runs have the same settings and seed.
    """
    grouped = group([run for entry in finished.entries for run in _runs(entry, finished.asked)], finished.asked)
    return dataclasses.replace(grouped, sweeps=tuple(finished.sweeps), left_out=tuple(finished.left_out))


def group(runs: Sequence[Run], asked: Mapping[str, Sequence[Any]]) -> Found:
    """Groups runs by their settings.

    Args:
      runs: One run or more.
      asked: The fields of their sweeps, with the values of the grids. These fields come first among the keys, and their
        values order the groups.

    Raises:
      UsageError: Two runs have the same settings and seed.
    """
    fields = {field: None for run in runs for field in run.settings}
    varying = [field for field in fields if len({_text(run, field) for run in runs}) > 1]
    rows: dict[tuple[str, ...], list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.seed):
        rows.setdefault(tuple(_text(run, field) for field in varying), []).append(run)
    keys = _keys([dict(zip(varying, row, strict=True)) for row in rows], asked)
    for same in rows.values():
        _refuse_twice(same)
    groups = [_group(varying, keys, same) for same in rows.values()]
    groups.sort(key=lambda member: [_rank(member.settings[key], asked.get(key, ())) for key in keys])
    return Found(tuple(groups), keys)


def of_seed(record: Sequence[Mapping[str, Any]], replica: int, together: int) -> list[dict[str, Any]]:
    """Picks a replica's lines of a record, each with an equal share of the seconds of those trained together."""
    return [{**line, "seconds": line["seconds"] / together} for line in lines_of_replica(record, replica)]


def short(field: str) -> str:
    """Turns the last part of a field's path into words."""
    return field.rpartition(".")[2].replace("_", " ")


def _runs(entry: Entry, asked: Container[str]) -> list[Run]:
    """Makes a run for each seed of an entry."""
    settings = {f: value for f, value in entry.config.items() if f in asked or f not in NOT_SETTINGS}
    first, together = entry.config["seed"], len(entry.results)
    return [
        Run(entry.path, first + index, settings, result, of_seed(entry.record, index, together), together)
        for index, result in enumerate(entry.results)
    ]


def _text(run: Run, field: str) -> str:
    return repr(run.settings.get(field, ""))


def _keys(rows: Sequence[Mapping[str, str]], asked: Iterable[str]) -> tuple[str, ...]:
    """Chooses fields that tell rows apart, trying those asked for, the mechanism, then those with fewest values."""
    fields = sorted(rows[0], key=lambda field: (field != MECHANISM, len({row[field] for row in rows})))
    keys: list[str] = []
    for field in [*(field for field in asked if field in rows[0]), *fields]:
        if _apart(rows, [*keys, field]) > _apart(rows, keys):
            keys.append(field)
    return tuple(keys)


def _apart(rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(row[key] for key in keys) for row in rows})


def _refuse_twice(same: Sequence[Run]) -> None:
    for first, second in itertools.pairwise(same):
        if first.seed == second.seed:
            raise UsageError(
                f"{first.path} and {second.path} are the same run, of seed {first.seed}; leave one of them out, since "
                "a repeated run is not a second seed."
            )


def _group(varying: Sequence[str], keys: Sequence[str], same: Sequence[Run]) -> Group:
    settings = {field: same[0].settings.get(field, "") for field in varying}
    words = (str(settings[key]) if key == MECHANISM else f"{short(key)} {settings[key]}" for key in keys)
    return Group(in_line(", ".join(words)) or "all runs", settings, tuple(same))


def _rank(value: Any, asked: Sequence[Any]) -> tuple[int, float, str]:
    """Makes a key that sorts values in the order of the grid, then other numbers by size and texts by name."""
    texts = [str(asked_value) for asked_value in asked]
    if str(value) in texts:
        return texts.index(str(value)), 0.0, ""
    return len(texts), float(value) if isinstance(value, int | float) else 0.0, str(value)
