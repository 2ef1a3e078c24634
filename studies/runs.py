"""Runs of `python -m train.main`, one on each CPU at a time, and the JSON that keeps their results."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import read_json
from train.grids import pool

ROOT = Path(__file__).parent.parent


def train_all(todo: Mapping[Path, Sequence[str]], say: Callable[[dict[str, Any]], str]) -> dict[Path, str]:
    """Trains runs without a result, one process on each CPU at a time, and prints a line for each run.

    Args:
      todo: The flags of each work directory's run.
      say: Makes a run's line from its `result.json`.

    Returns:
      How each run ended; see `pool.run_all`.
    """

    def ended(workdir: Path, outcome: str, _: float) -> None:
        text = say(result(workdir)) if outcome == pool.FINISHED else f"{outcome}, see {pool.log_of(workdir)}"
        print(f"{workdir.name}: {text}", flush=True)

    return pool.run_all({path: pool.command(flags, path) for path, flags in todo.items()}, 0, ended)


def result(workdir: Path) -> dict[str, Any] | None:
    """Reads a run's result; None if it has not finished."""
    path = workdir / "result.json"
    return read_json(path) if path.exists() else None


def write(name: str, about: Mapping[str, Any], some: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """Writes a study's JSON: facts about it, versions and devices of one of its runs, and the kept results."""
    record = {**about, "versions": some["versions"], "devices": some["devices"], "runs": kept}
    file_of(name).write_text(json.dumps(record, indent=2) + "\n")
    print(f"Wrote {file_of(name).name}; `python -m docs.figures` writes its table into the page.")


def file_of(name: str) -> Path:
    """Names the JSON file of a study."""
    return ROOT / f"benchmarks/results/{name}_cpu.json"
