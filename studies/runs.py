"""Runs of `python -m train.main`, one on each CPU at a time, and tables of them in the docs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from train.grids import pool

ROOT = Path(__file__).parent.parent


def train_all(todo: Mapping[Path, Sequence[str]], say: Callable[[dict[str, Any]], str]) -> None:
    """Trains what has no result yet, a process for each CPU at a time, and prints a line for each run.

    Args:
      todo: From a work directory to the flags of its run.
      say: From a run's `result.json` to what is printed of it.
    """

    def ended(workdir: Path, outcome: str) -> None:
        text = say(result(workdir)) if outcome == pool.FINISHED else f"{outcome}, see {pool.log_of(workdir)}"
        print(f"{workdir.name}: {text}", flush=True)

    pool.run_all({path: pool.command(flags, path) for path, flags in todo.items()}, 0, ended)


def result(workdir: Path) -> dict[str, Any] | None:
    """What a finished run came to; None where it has not finished."""
    path = workdir / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def put_between(page: Path, start: str, end: str, text: str) -> None:
    """Replaces what a page has between two marks."""
    before, rest = page.read_text().split(start)
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end, 1)[1]}")
