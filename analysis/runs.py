"""Finished runs, read from their work directories and grouped by what differs between them."""

import dataclasses
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import metrics
from attention.errors import UsageError
from train.results import of_replica
from train.workdir import flatten, read_config, read_results
from train.writers import read_record

# Fields that say where things are and how often something is written: runs that differ in them alone are alike.
NOT_SETTINGS = (
    "seed",
    "train.replicas",
    "train.log_every",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep",
    "data.data_dir",
    "data.cache_dir",
    "data.streaming",
    "data.workers",
    "data.eval_batch_size",
    "mesh.",
)
SWEEP = "sweep.json"
MECHANISM = "model.attention"


@dataclasses.dataclass(frozen=True)
class Run:
    """One seed of one setting.

    Attributes:
      path: Its work directory.
      seed: The config's, and the number of the replica added where seeds were trained together.
      settings: All leaves of the config that make runs differ but for the seed, by their path.
      result: Of `result.json`; of the replica.
      record: Lines of `metrics.jsonl`; of the replica.
      together: How many seeds were trained in one program; its seconds are of all of them, but for those per epoch.
    """

    path: Path
    seed: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    record: Sequence[Mapping[str, Any]]
    together: int

    def value(self, metric: str, split: str = "test") -> float:
        """Of a metric: a cost of the whole run, or of a split at the best step; NaN where the run has none."""
        if metric in metrics.COSTS:
            return self.result.get(metric, float("nan"))
        if split == "train":
            return self._train_line().get(metric, float("nan"))
        return self.result["best"][split].get(metric, float("nan"))

    @property
    def seconds(self) -> float:
        """Of training, a share of them where seeds were trained together."""
        return self.result["seconds"] / self.together

    @property
    def examples(self) -> int:
        """Seen in training."""
        return self.result["steps"] * self.settings["data.batch_size"]

    @property
    def flops(self) -> int:
        """Of all forward and backward passes in training."""
        return self.examples * self.result["training_flops_per_example"]

    def curve(self, metric: str) -> list[tuple[int, float, float]]:
        """Step, seconds and value of every evaluation on validation data."""
        lines = (line for line in self.record if line["split"] == "validation" and metric in line)
        return [(line["step"], line["seconds"] / self.together, line[metric]) for line in lines]

    def _train_line(self) -> Mapping[str, Any]:
        """The last line on training data up to the best step: each averages what came since the line before."""
        best = self.result["best_step"]
        lines = [line for line in self.record if line["split"] == "train" and line["step"] <= best]
        return lines[-1] if lines else {}


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone, in the order of their seeds.

    Attributes:
      label: What tells it from the other groups, in a few words.
      settings: All that differs between the groups, by the path of the field.
      runs: At least one.
    """

    label: str
    settings: Mapping[str, Any]
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of its runs."""
        return tuple(run.seed for run in self.runs)


@dataclasses.dataclass(frozen=True)
class Found:
    """What was found in some folders.

    Attributes:
      groups: Ordered by their keys.
      keys: The fewest fields that tell the groups apart; whatever else differs between groups follows from them.
      left_out: A sentence for each folder that is no finished run.
    """

    groups: tuple[Group, ...]
    keys: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def find(folders: Sequence[Path]) -> Found:
    """All finished runs in some folders and below.

    Raises:
      UsageError: a folder that is not there, a damaged `sweep.json`, no finished run at all, or two of the same
        settings and seed.
    """
    runs: list[Run] = []
    left_out: list[str] = []
    asked: dict[str, Sequence[Any]] = {}
    for directory in (directory for folder in folders for directory in _work_directories(folder)):
        asked |= _asked(directory)
        try:
            runs += read(directory)
        except UsageError as error:
            left_out.append(str(error))
    if not runs:
        reasons = f": {left_out[0]}" if left_out else "; give folders of runs, such as the --workdir of a sweep."
        raise UsageError(f"There is no finished run in {', '.join(map(str, folders))}{reasons}")
    return dataclasses.replace(group(runs, asked), left_out=tuple(left_out))


def read(directory: Path) -> list[Run]:
    """The runs of a work directory: one, or each of the seeds that were trained together.

    Raises:
      UsageError: it is no work directory, or the run has not finished.
    """
    config = flatten(read_config(directory))
    if not {"task", "seed", "data.batch_size"} <= set(config):
        raise UsageError(f"{directory} was left out: its config.json is none of a run.")
    if not (directory / "result.json").is_file():
        raise UsageError(f"{directory} was left out: the run has not finished.")
    try:
        results, record = read_results(directory), read_record(directory)
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory} was left out: it cannot be read ({error}).") from error
    if not all({"best", "best_step", "steps", "seconds"} <= set(own) for own in results):
        raise UsageError(f"{directory} was left out: its result.json holds no result of a run.")
    settings = {field: value for field, value in config.items() if not field.startswith(NOT_SETTINGS)}
    return [
        Run(directory, config["seed"] + index, settings, own, of_replica(record, index), len(results))
        for index, own in enumerate(results)
    ]


def group(runs: Sequence[Run], asked: Mapping[str, Sequence[Any]]) -> Found:
    """Runs by their settings.

    Args:
      runs: At least one.
      asked: The fields and values of the sweeps that they come of: the first of the keys, and their order.

    Raises:
      UsageError: two runs of the same settings and seed.
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
    rank = lambda each: [_rank(each.settings[key], asked.get(key, ())) for key in keys]  # noqa: E731
    return Found(tuple(sorted(groups, key=rank)), keys)


def short(field: str) -> str:
    """The last part of a field's path, as words."""
    return field.rpartition(".")[2].replace("_", " ")


def _work_directories(folder: Path) -> Iterator[Path]:
    """Every folder with a `config.json` at `folder` or below, in order; what is in them is not looked at."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give folders of runs, such as the --workdir of a sweep.")
    for directory, below, files in os.walk(folder):
        below.sort()
        if "config.json" in files:
            below.clear()
            yield Path(directory)


def _asked(directory: Path) -> dict[str, Sequence[Any]]:
    """Fields and values of the sweep that a run is of; none where it is of none."""
    sweep = directory.absolute().parent.parent / SWEEP
    try:
        return dict(json.loads(sweep.read_text(encoding="utf-8"))["over"]) if sweep.is_file() else {}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{sweep} is damaged ({error}); remove it.") from error


def _text(run: Run, field: str) -> str:
    return repr(run.settings.get(field, ""))


def _keys(rows: Sequence[Mapping[str, str]], asked: Iterable[str]) -> tuple[str, ...]:
    """The first fields that tell rows apart: those asked for, then the mechanism, then those of the fewest values."""
    fields = sorted(rows[0], key=lambda field: (field != MECHANISM, len({row[field] for row in rows})))
    keys: list[str] = []
    for field in [*(field for field in asked if field in rows[0]), *fields]:
        if _apart(rows, [*keys, field]) > _apart(rows, keys):
            keys.append(field)
    return tuple(keys)


def _apart(rows: Sequence[Mapping[str, str]], keys: Sequence[str]) -> int:
    return len({tuple(row[key] for key in keys) for row in rows})


def _refuse_twice(same: Sequence[Run]) -> None:
    for one, other in itertools.pairwise(same):
        if one.seed == other.seed:
            raise UsageError(
                f"{one.path} and {other.path} are the same run, of seed {one.seed}; leave one of them out, "
                "since the same figures twice are no two seeds."
            )


def _group(varying: Sequence[str], keys: Sequence[str], same: Sequence[Run]) -> Group:
    settings = {field: same[0].settings.get(field, "") for field in varying}
    parts = (str(settings[key]) if key == MECHANISM else f"{short(key)} {settings[key]}" for key in keys)
    return Group(", ".join(parts) or "all runs", settings, tuple(same))


def _rank(value: Any, asked: Sequence[Any]) -> tuple[int, float, str]:
    """Where a value comes: in the order in which it was asked for, else numbers by size and texts by name."""
    texts = [str(each) for each in asked]
    if str(value) in texts:
        return texts.index(str(value)), 0.0, ""
    return len(texts), float(value) if isinstance(value, int | float) else 0.0, str(value)
