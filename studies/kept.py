"""The archive of a study, `docs/replication/NAME.json`, which keeps each run and each tuning trial as soon as it ends.

So a study can stop at any time, and continue elsewhere.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from analysis import archive
from analysis import runs as found_runs
from analysis.archive import Entry, Finished
from analysis.runs import Found
from models.files import read_json
from studies import runs
from train.grids import grid, tuning

KEPT = runs.ROOT / "docs/replication"


def place(name: str) -> Path:
    """Names the archive of a study."""
    return KEPT / f"{name}.json"


def read(name: str) -> Finished:
    """Reads a study's archive; empty if there is none."""
    return archive.read(place(name)) if place(name).is_file() else Finished([], [])


def keep(folder: Path) -> tuple[int, int]:
    """Adds a sweep's finished runs and trials to its archive; returns how many of each it has then."""
    before = read(folder.name)
    runs_of = _merged(before.entries, _finished(folder, "*"))
    trials = _merged(before.trials, _finished(folder, f"{tuning.FOLDER}/*/*"))
    sweeps = [_of_any_machine(folder)] if (folder / grid.FILE).is_file() else before.sweeps
    now = Finished(runs_of, sweeps, trials=trials)
    if (runs_of or trials) and now != before:
        KEPT.mkdir(parents=True, exist_ok=True)
        archive.write(now, place(folder.name))
    return len(runs_of), len(trials)


def _of_any_machine(folder: Path) -> dict[str, Any]:
    """Reads the sweep of a folder, with a command that names the folder as a checkout does."""
    sweep = read_json(folder / grid.FILE)
    return sweep | {"command": sweep["command"].replace(f"={folder}", f"=runs/replication/{folder.name}")}


def _finished(folder: Path, settings: str) -> list[Entry]:
    """Reads the finished runs of the settings, with paths relative to the sweep's folder."""
    directories = [file.parent for file in folder.glob(f"{settings}/seed*/result.json")]
    found = archive.find(directories).entries if directories else []
    return [dataclasses.replace(entry, path=entry.path.relative_to(folder)) for entry in found]


def _merged(before: Iterable[Entry], now: Iterable[Entry]) -> list[Entry]:
    return [entry for _, entry in sorted({entry.path: entry for entry in (*before, *now)}.items())]


def find(name: str) -> Found | None:
    """Groups the archived runs of a study; None if there are none."""
    finished = read(name)
    return found_runs.of(finished) if finished.entries else None
