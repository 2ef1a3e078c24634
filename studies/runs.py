"""Runs of `python -m train.main`, one on each CPU at a time, and their tables in the documents."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from models.files import read_json
from train.grids import pool

MARK, END = "<!-- figures: {} -->", "<!-- end -->"
FIGURE = re.compile(rf"(?P<mark>{MARK.format('(?P<name>.+?)')})(?s:.*?){END}")
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


def file_of(name: str) -> Path:
    """Names the JSON file of a study."""
    return ROOT / f"benchmarks/results/{name}_cpu.json"


def with_figures(text: str, figure: Callable[[str], str | None]) -> str:
    """Replaces the figures of a page, which stand between `<!-- figures: NAME -->` and `<!-- end -->`.

    Args:
      figure: Makes the figure of a name: a number for a sentence, a table for separate lines, or None to leave it as
        it is.
    """

    def between(match: re.Match[str]) -> str:
        made = figure(match["name"])
        if made is None:
            return match[0]
        return match["mark"] + (f"\n\n{made}\n\n" if "\n" in made else made) + END

    return FIGURE.sub(between, text)


def put(page: Path, name: str, made: str) -> None:
    """Writes a figure into a page.

    Raises:
      UsageError: The page has no place for it.
    """
    text = page.read_text(encoding="utf-8")
    if MARK.format(name) not in text:
        raise UsageError(f"{page.name} has no place for {name}; write {MARK.format(name)} and {END} there.")
    page.write_text(with_figures(text, {name: made}.get), encoding="utf-8")
