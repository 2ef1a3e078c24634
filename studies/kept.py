"""What is kept of a study in `docs/replication`: a file for each run and each trial of its tuning, as soon as it ends.

So a study can stop at any time, and go on elsewhere. The first ten studies are kept in one file each.
"""

import dataclasses
from pathlib import Path

from analysis import archive
from analysis import runs as found_runs
from analysis.archive import Finished
from analysis.runs import Found
from models.files import read_json
from studies import runs
from train.grids import grid, pool, tuning

KEPT = runs.ROOT / "docs/replication"


def keep(folder: Path) -> tuple[int, int]:
    """Keeps every run and trial of a sweep that has finished; returns how many runs and how many trials there are."""
    runs_of = list(archive.work_directories(folder)) if folder.is_dir() else []
    trials = list(archive.work_directories(folder / tuning.FOLDER)) if (folder / tuning.FOLDER).is_dir() else []
    for directory in (*runs_of, *trials):
        keep_one(folder, directory)
    return sum(map(pool.is_finished, runs_of)), sum(map(pool.is_finished, trials))


def keep_one(folder: Path, directory: Path) -> None:
    """Keeps a run or trial that has finished, and what its sweep has come to; nothing of one that has not."""
    if not pool.is_finished(directory):
        return
    out = KEPT / folder.name / f"{directory.relative_to(folder)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    archive.write(dataclasses.replace(archive.find([directory]), sweeps=()), out, folder)
    archive.write(Finished([], [read_json(folder / grid.FILE)]), KEPT / folder.name / grid.FILE)


def put_back(folder: Path) -> int:
    """Restores what is kept of a sweep to its folder, so that it is not trained again; returns how many runs."""
    files = sorted((KEPT / folder.name).rglob("*.json"))
    return sum(archive.unpack(archive.read(file), folder) for file in files)


def places(name: str) -> list[Path]:
    """Lists the archives that hold a study's runs and its sweep, without trials; none where no run is kept."""
    folder = KEPT / name
    if not folder.is_dir():
        return [file for file in [folder.with_name(f"{name}.json")] if file.is_file()]
    files = [file for file in folder.rglob("*.json") if tuning.FOLDER not in file.relative_to(folder).parts]
    return sorted(files) if len(files) > 1 else []


def find(name: str) -> Found | None:
    """Reads the runs that are kept of a study; None where there are none."""
    files = places(name)
    return found_runs.find(files) if files else None
