"""Finished runs in one file: all that reports and curves need of them, without their checkpoints.

python -m analysis.archive runs/mnist --out=mnist.json
python -m analysis.report mnist.json
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train import cli
from train.grids import grid, tuning
from train.run.workdir import flatten, read_config, read_results
from train.run.writers import read_record, write_json, write_text

SUFFIX = ".json"  # of an archive, which a folder is not


@dataclasses.dataclass(frozen=True)
class Entry:
    """A finished run as it stands on disk.

    Attributes:
      path: Its work directory, or where it was when it was archived.
      config: All leaves by their path.
      results: Of `result.json`, one for each seed that was trained.
      record: Lines of `metrics.jsonl`.
    """

    path: Path
    config: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]
    record: Sequence[Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Finished:
    """What was found.

    Attributes:
      entries: In order.
      sweeps: What the sweeps that they come of were asked, and tried and chose: what `sweep.json` holds.
      left_out: A sentence for each work directory that holds no finished run.
    """

    entries: Sequence[Entry]
    sweeps: Sequence[Mapping[str, Any]]
    left_out: Sequence[str] = ()

    @property
    def asked(self) -> dict[str, Sequence[Any]]:
        """The fields of the sweeps, and their values."""
        values: dict[str, dict[Any, None]] = {}
        for sweep in self.sweeps:
            beside = [{field: [value] for field, value in setting.items()} for setting in sweep.get("also", ())]
            for fields in (sweep["over"], *beside):
                for field, texts in fields.items():
                    values.setdefault(field, {}).update(dict.fromkeys(texts))
        return {field: list(texts) for field, texts in values.items()}


def find(places: Sequence[Path]) -> Finished:
    """The finished runs of archives, and of folders and all below them.

    Raises:
      UsageError: a place that is not there, a damaged archive or `sweep.json`, or no finished run at all.
    """
    entries: list[Entry] = []
    sweeps: list[Mapping[str, Any]] = []
    left_out: list[str] = []
    for place in places:
        found = read(place) if place.is_file() else _in_folder(place)
        entries += found.entries
        sweeps += found.sweeps
        left_out += found.left_out
    if not entries:
        reasons = f": {left_out[0]}" if left_out else "; give folders of runs, such as the --workdir of a sweep."
        raise UsageError(f"There is no finished run in {', '.join(map(str, places))}{reasons}")
    return Finished(entries, sweeps, left_out)


def write(found: Finished, out: Path, above: Path = Path()) -> None:
    """One object: `sweeps`, the leaves that all runs share under `config`, and `runs`, each on a line.

    Args:
      found: What is kept.
      out: The file.
      above: A folder that all runs are in, which their paths leave out.
    """
    first = found.entries[0].config
    shared = {f: v for f, v in first.items() if all(f in e.config and e.config[f] == v for e in found.entries)}
    lines = [
        {
            "path": str(entry.path.relative_to(above)),
            "config": {field: value for field, value in entry.config.items() if field not in shared},
            "results": entry.results,
            "record": entry.record,
        }
        for entry in found.entries
    ]
    head = json.dumps({"sweeps": found.sweeps, "config": shared}, indent=1)[:-2]
    runs = ",\n".join(json.dumps(line) for line in lines)
    write_text(out, f'{head},\n "runs": [\n{runs}\n ]\n}}\n')


def read(file: Path) -> Finished:
    """What `write` has kept.

    Raises:
      UsageError: it is no archive.
    """
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        entries = [
            Entry(Path(run["path"]), kept["config"] | run["config"], run["results"], run["record"])
            for run in kept["runs"]
        ]
        for entry in entries:
            _check(entry)
        sweeps = kept["sweeps"] if "sweeps" in kept else [{"over": dict(kept["asked"])}]  # as it was kept before
        return Finished(entries, sweeps)
    except (OSError, ValueError, TypeError, KeyError, UsageError) as error:
        raise UsageError(
            f"{file} is no archive of runs; give folders of runs, or what analysis.archive has written."
        ) from error


def unpack(found: Finished, folder: Path) -> int:
    """Puts runs back where `write` has found them, without checkpoints, so that a sweep goes on with those it lacks.

    Args:
      found: Of one archive.
      folder: Of the sweep; what is there already stays.

    Returns:
      How many runs were put back.
    """
    missing = [entry for entry in found.entries if not (folder / entry.path).exists()]
    for entry in missing:
        directory = folder / entry.path
        directory.mkdir(parents=True)
        write_json(directory / "config.json", _nested(entry.config))
        write_text(directory / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in entry.record))
        result = entry.results[0] if len(entry.results) == 1 else {"replicas": entry.results}
        write_json(directory / "result.json", result)
    for sweep in found.sweeps[:1]:
        if not (folder / grid.FILE).exists():
            write_json(folder / grid.FILE, sweep)
    return len(missing)


def _nested(config: Mapping[str, Any]) -> dict[str, Any]:
    """`{'a.b': 1}` as `{'a': {'b': 1}}`."""
    nested: dict[str, Any] = {}
    for path, value in config.items():
        *sections, leaf = path.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[leaf] = value
    return nested


def _in_folder(folder: Path) -> Finished:
    entries, left_out = [], []
    sweeps: dict[Path, Mapping[str, Any]] = {}
    for directory in _work_directories(folder):
        sweeps |= _sweep(directory)
        try:
            entries.append(_entry(directory))
        except UsageError as error:
            left_out.append(str(error))
    return Finished(entries, list(sweeps.values()), left_out)


def _entry(directory: Path) -> Entry:
    """A work directory's.

    Raises:
      UsageError: it is none, or the run has not finished.
    """
    config = flatten(read_config(directory))
    _check(Entry(directory, config, [], []))
    if not (directory / "result.json").is_file():
        raise UsageError(f"{directory} was left out: the run has not finished.")
    try:
        entry = Entry(directory, config, read_results(directory), read_record(directory))
    except (OSError, ValueError) as error:
        raise UsageError(f"{directory} was left out: it cannot be read ({error}).") from error
    _check(entry)
    return entry


def _check(entry: Entry) -> None:
    """Raises a UsageError where it is no run's."""
    if not {"task", "seed", "data.batch_size"} <= set(entry.config):
        raise UsageError(f"{entry.path} was left out: its config.json is none of a run.")
    if not all({"best", "best_step", "steps", "seconds"} <= set(own) for own in entry.results):
        raise UsageError(f"{entry.path} was left out: its result.json holds no result of a run.")


def _work_directories(folder: Path) -> Iterator[Path]:
    """Every folder with a `config.json` at `folder` or below, in order; what is in them is not looked at."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give folders of runs, such as the --workdir of a sweep.")
    for directory, below, files in os.walk(folder):
        below.sort()
        if grid.FILE in files and tuning.FOLDER in below:
            below.remove(tuning.FOLDER)
        if "config.json" in files:
            below.clear()
            yield Path(directory)


def _sweep(directory: Path) -> dict[Path, Mapping[str, Any]]:
    """The sweep that a run is of, by its file; none where it is of none."""
    sweep = directory.absolute().parent.parent / grid.FILE
    if not sweep.is_file():
        return {}
    try:
        record = json.loads(sweep.read_text(encoding="utf-8"))
        dict(record["over"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(f"{sweep} is damaged ({error}); remove it.") from error
    return {sweep: record}


def parser() -> cli.Parser:
    """The flags."""
    made = cli.Parser(__doc__)
    made.add_argument("folder", type=Path, help="of finished runs, or a folder above them")
    made.add_argument("--out", required=True, type=Path, help=f"the file, whose name ends in {SUFFIX}")
    return made


def _run(flags: argparse.Namespace) -> None:
    """Keeps, and says what."""
    if flags.out.suffix != SUFFIX:
        raise UsageError(f"--out={flags.out} must end in {SUFFIX}; write --out={flags.out.with_suffix(SUFFIX)}.")
    if flags.folder.is_file():
        raise UsageError(f"{flags.folder} is no folder; give folders of runs, such as the --workdir of a sweep.")
    found = find([flags.folder])
    flags.out.parent.mkdir(parents=True, exist_ok=True)
    write(found, flags.out, flags.folder)
    print(*found.left_out, f"Kept {len(found.entries)} finished runs in {flags.out}.", sep="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    return cli.run(lambda: _run(parser().parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
