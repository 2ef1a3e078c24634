"""Store finished runs in one file, without checkpoints, for reports and curves.

python -m analysis.archive runs/mnist --out=mnist.json
python -m analysis.report mnist.json
"""

import argparse
import dataclasses
import itertools
import json
import os
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, listed, printable
from attention.types import Count, Seed, fits
from models.files import read_json
from train import cli
from train.cli.files import TEMPORARY, check_place, is_line, is_number, read_record, write_json, write_text, writing
from train.run import doubts

SUFFIX = ".json"  # ending of an archive's name
NAMED = 12  # skipped places that a sentence names
FLOPS = "training_flops_per_example"
LEAF = (str, int, float)  # bools are ints


@dataclasses.dataclass(frozen=True)
class Entry:
    """A finished run as it is stored on disk.

    Attributes:
      path: Its work directory, or where it was when it was archived.
      config: Every leaf of the config by its path.
      results: The results of `result.json`, one for each seed that was trained.
      record: The lines of `metrics.jsonl`.
    """

    path: Path
    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    record: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Finished:
    """The finished runs of some folders or archives.

    Attributes:
      entries: The runs, in order.
      sweeps: The content of each `sweep.json`: what was asked for, tried and chosen.
      left_out: A sentence for each work directory that holds no finished run.
      trials: The runs of a tuning, which only archives keep; reports ignore them.
    """

    entries: Sequence[Entry]
    sweeps: Sequence[Mapping[str, Any]]
    left_out: Sequence[str] = ()
    trials: Sequence[Entry] = ()

    @property
    def asked(self) -> dict[str, Sequence[Any]]:
        """The fields that the sweeps vary, each with the values of its grid.

        Settings beside a grid add their fields but no values, so their values do not come first.
        """
        values: dict[str, dict[Any, None]] = {}
        for sweep in self.sweeps:
            for field, texts in sweep["over"].items():
                values.setdefault(field, {}).update(dict.fromkeys(texts))
            for field in itertools.chain(*sweep.get("also", ())):
                values.setdefault(field, {})
        return {field: list(texts) for field, texts in values.items()}


def find(places: Sequence[Path]) -> Finished:
    """Finds the finished runs of archives, and of folders and all folders below them.

    A run that is found twice counts once. If there are several places, as in `runs/*`, some may hold no run.

    Raises:
      UsageError: A place does not exist, an archive or `sweep.json` is damaged, or there is no finished run at all.
    """
    alone = len(places) == 1
    archives = {place: read(place) if alone else _archive(place) for place in places if place.is_file()}
    folders = {place: list(work_directories(place)) for place in places if place not in archives}
    directories = {directory.resolve(): directory for inside in folders.values() for directory in inside}
    found = [_in_folders(directories.values()), *filter(None, archives.values())]
    left_out = [sentence for finished in found for sentence in finished.left_out]
    contents = archives | folders
    if not alone and (passed := [place.name for place in places if not contents[place]]):
        left_out.append(passed_over(passed))
    entries = [entry for finished in found for entry in finished.entries]
    if not entries:
        reasons = f": {left_out[0]}" if left_out else "; give folders of runs, such as the --workdir of a sweep."
        raise UsageError(f"There is no finished run in {', '.join(map(str, places))}{reasons}")
    return Finished(entries, [sweep for finished in found for sweep in finished.sweeps], left_out)


def passed_over(names: Sequence[str]) -> str:
    """Names the first `NAMED` places that were skipped, and counts the others."""
    return f"Skipped, since they hold no run: {listed(names, NAMED)}."


def write(found: Finished, out: Path, above: Path = Path()) -> None:
    """Writes one object: `sweeps`, what all configs share as `config`, and a line for each of `runs` and `trials`.

    Args:
      found: The runs to write; a sweep that has only begun has none.
      above: A folder that holds all runs; paths are relative to it.
    """
    every = (*found.entries, *found.trials)
    first = every[0].config if every else {}
    shared = {f: v for f, v in first.items() if all(f in e.config and e.config[f] == v for e in every)}

    def lines(entries: Iterable[Entry]) -> str:
        return ",\n".join(json.dumps(_line(entry, shared, above)) for entry in entries)

    head = json.dumps({"sweeps": found.sweeps, "config": shared}, indent=1)[:-2]
    trials = f',\n "trials": [\n{lines(found.trials)}\n ]' if found.trials else ""
    write_text(out, f'{head},\n "runs": [\n{lines(found.entries)}\n ]{trials}\n}}\n')


def _line(entry: Entry, shared: Container[str], above: Path) -> dict[str, Any]:
    return {
        "path": printable(str(entry.path.relative_to(above))),
        "config": {field: value for field, value in entry.config.items() if field not in shared},
        "results": entry.results,
        "record": entry.record,
    }


def read(file: Path) -> Finished:
    """Reads an archive that `write` has written.

    Raises:
      UsageError: The file is no archive.
    """
    from train.grids import grid

    try:
        kept = read_json(file)
        entries, trials = (
            [
                Entry(Path(run["path"]), _completed(kept["config"] | run["config"]), run["results"], run["record"])
                for run in part
            ]
            for part in (kept["runs"], kept.get("trials", ()))
        )
        for entry in (*entries, *trials):
            _check(entry)
            if entry.path.is_absolute() or ".." in entry.path.parts:  # `unpack` would write outside its folder
                raise ValueError(f"{entry.path} is outside")
            if "\0" in str(entry.path):
                raise ValueError(f"{entry.path} is no path")
        sweeps = kept["sweeps"] if "sweeps" in kept else [{"over": dict(kept["asked"])}]  # the format of older archives
        if not all(map(grid.is_record, sweeps)):
            raise ValueError("a sweep is none")
        return Finished(entries, sweeps, trials=trials)
    except (ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{file} is no archive of runs; give folders of runs, or what analysis.archive has written."
        ) from error


def _completed(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Adds missing leaves as `read_config` does, so that archives and folders can be compared."""
    from flax.traverse_util import unflatten_dict

    from train.loading.leaves import completed, flatten

    return {**leaves, **flatten(completed(unflatten_dict(leaves, sep=".")))}  # in the order of the archive


def unpack(found: Finished, folder: Path) -> int:
    """Restores runs to a sweep's folder, without checkpoints, so that the sweep trains only the missing ones.

    Args:
      found: The content of one archive.
      folder: The sweep's folder; files that it already has are kept.

    Returns:
      How many runs were put back.

    Raises:
      UsageError: The folder cannot be written, or a run's path cannot be one.
    """
    from train.grids import grid

    with writing(f"A run of the archive in {folder}"):
        missing = [entry for entry in (*found.entries, *found.trials) if not (folder / entry.path).exists()]
        for entry in missing:
            _unpack(entry, folder / entry.path)
        for sweep in found.sweeps[:1]:
            if not (folder / grid.FILE).exists():
                grid.write(folder, sweep)
    return len(missing)


def _unpack(entry: Entry, directory: Path) -> None:
    from flax.traverse_util import unflatten_dict

    directory.mkdir(parents=True)
    write_json(directory / "config.json", unflatten_dict(entry.config, sep="."))
    write_text(directory / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in entry.record))
    result = entry.results[0] if len(entry.results) == 1 else {"replicas": entry.results}
    write_json(directory / "result.json", result)


def _archive(file: Path) -> Finished | None:
    """Reads one of several places; None if it is not an archive, such as a log in `runs/*`."""
    try:
        return read(file) if file.suffix == SUFFIX else None
    except UsageError:
        return None


def _in_folders(directories: Iterable[Path]) -> Finished:
    from train.grids import grid

    entries, left_out = [], []
    sweeps: dict[Path, Mapping[str, Any]] = {}
    for directory in directories:
        file = directory.absolute().parent.parent / grid.FILE
        if file not in sweeps and file.is_file():
            sweeps[file] = _sweep(file)
        try:
            entries.append(_entry(directory))
        except UsageError as error:
            left_out.append(str(error))
    return Finished(entries, list(sweeps.values()), left_out)


def _entry(directory: Path) -> Entry:
    """Reads the finished run of a work directory.

    Raises:
      UsageError: It is not a work directory, or the run has not finished.
    """
    from train.loading.leaves import flatten
    from train.run.workdir import read_config, read_results

    config = flatten(read_config(directory))
    _check(Entry(directory, config, [], []))
    if not (directory / "result.json").is_file():
        raise UsageError(f"{directory} was left out: the run has not finished.")
    try:
        entry = Entry(directory, config, read_results(directory), read_record(directory))
    except UsageError as error:
        raise UsageError(f"{directory} was left out: it cannot be read ({error}).") from error
    _check(entry)
    return entry


def _check(entry: Entry) -> None:
    """Raises a UsageError if an entry is not that of a run."""
    kinds = {"task": str, "seed": Seed, "data.source": str}
    known = all(fits(kind, entry.config.get(field)) for field, kind in kinds.items())
    if not (known and fits(Count, entry.config.get("data.batch_size")) and all(map(_is_leaf, entry.config.values()))):
        raise UsageError(f"{entry.path} was left out: its config.json is not that of a run.")
    if not all(map(_is_result, entry.results)):
        raise UsageError(f"{entry.path} was left out: its result.json holds no result of a run.")
    if not all(is_line(line) and "seconds" in line for line in entry.record):
        raise UsageError(f"{entry.path} was left out: its record has lines without steps, splits, seconds or numbers.")


def _is_leaf(value: Any) -> bool:
    """Tells whether a config can hold a value: a plain one, or a tuple of these."""
    return all(map(_is_leaf, value)) if isinstance(value, tuple) else value is None or isinstance(value, LEAF)


def _is_result(result: Any) -> bool:
    """Tells whether a value has all that reports read from a result, with the right types."""
    from analysis.metrics import COSTS

    kinds = {"best_step": int, "steps": int, "best": dict}
    if not (isinstance(result, dict) and all(type(result.get(name)) is kind for name, kind in kinds.items())):
        return False
    best, baselines = result["best"], result.get("baselines", {})
    tables = (*best.values(), baselines, result.get("versions", {}))
    if result["steps"] < 1 or "test" not in best or not all(isinstance(table, dict) for table in tables):
        return False
    costs = [result.get("seconds"), *(result[name] for name in (*COSTS, FLOPS, *doubts.SIZES) if name in result)]
    measured = [value for metrics in (*best.values(), baselines) for value in metrics.values()]
    return all(map(is_number, [*costs, *measured]))


def work_directories(folder: Path) -> Iterator[Path]:
    """Yields `folder` or the folders below it that have a `config.json`, in order, without descending into them."""
    from train.grids import grid, tuning

    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give folders of runs, such as the --workdir of a sweep.")
    for directory, below, files in os.walk(folder):
        below[:] = sorted(name for name in below if not name.endswith(TEMPORARY))
        if grid.FILE in files and tuning.FOLDER in below:
            below.remove(tuning.FOLDER)
        if "config.json" in files:
            below.clear()
            yield Path(directory)


def _sweep(file: Path) -> Mapping[str, Any]:
    """Reads the record of a sweep."""
    from train.grids import grid

    record = read_json(file, "remove it")
    if not grid.is_record(record):
        raise UsageError(f"{file} is damaged (it does not say what varies); remove it.")
    return record


@cli.program(
    __doc__,
    cli.flag("folder", type=Path, help="folder with finished runs in or below it"),
    cli.flag("--out", required=True, type=Path, help=f"the file, whose name ends in {SUFFIX}"),
)
def main(flags: argparse.Namespace) -> None:
    """Writes the archive and prints what was kept and what was left out."""
    if flags.out.suffix != SUFFIX:
        raise UsageError(f"--out={flags.out} must end in {SUFFIX}; write --out={flags.out.with_suffix(SUFFIX)}.")
    check_place(flags.out)
    if flags.folder.is_file():
        raise UsageError(f"{flags.folder} is no folder; give folders of runs, such as the --workdir of a sweep.")
    finished = find([flags.folder])
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    write(finished, flags.out, flags.folder)
    print(*finished.left_out, f"Kept {len(finished.entries)} finished runs in {flags.out}.", sep="\n")


if __name__ == "__main__":
    sys.exit(main())
