"""`report.html`: a report as a page with sortable tables, and curves that show their values."""

import html
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from analysis import compare
from analysis.comparison import ComparisonReport
from analysis.metrics import METRICS
from analysis.pages import shell
from analysis.pictures import style
from analysis.runs import Group, Run
from analysis.tables import Number, ResultTable
from attention.errors import in_line

SPLITS = ("validation", "train")
POINTS = 30_000  # most points of all curves together, some hundred kilobytes; longer records are thinned
FEWEST = 20  # fewest points that a thinned curve keeps


def page(report: ComparisonReport, folder: Path) -> str:
    """Makes the page of a report.

    Args:
      folder: The page's folder; links to the runs are relative to it.
    """
    runs = [run for group in report.found.groups for run in group.runs]
    names = [name for name in METRICS if any(name in line for run in runs for line in run.record)]
    names.sort(key=lambda name: name not in report.compared)
    looks = style.colours(group.label for group in report.found.groups)
    most = max(FEWEST, POINTS // (len(runs) * len(SPLITS) * max(len(names), 1)))
    more = {"Declared comparisons": report.declared, "Tuning": report.tuning}
    data = {
        "about": _about(runs),
        "verdict": [{"text": text, "claim": compare.claim_of(text)} for text in report.verdict],
        "introduction": report.introduction.replace("`", ""),
        "notes": report.notes,
        "overview": _table(report.overview),
        "more": [{"title": title, "table": _table(table)} for title, table in more.items() if table.rows],
        "metrics": [{"name": name, "title": METRICS[name].title} for name in names],
        "groups": [_group(group, looks[group.label][0], names, most, folder) for group in report.found.groups],
    }
    labels = ", ".join(group.label for group in report.found.groups)
    return shell.filled(Path(__file__).with_suffix(".html"), data, TITLE=f"Comparison: {html.escape(labels)}")


def _about(runs: Sequence[Run]) -> str:
    """Names the task and the data of all runs; '' if they differ."""
    abouts = {f"{run.settings['task'].replace('_', ' ')} of {run.settings['data.source']}" for run in runs}
    return in_line(abouts.pop().capitalize()) if len(abouts) == 1 else ""


def _table(table: ResultTable) -> dict[str, Any]:
    return {
        "titles": [column.title for column in table.columns],
        "numbers": [bool(column.numbers) for column in table.columns],
        "rows": [[_cell(cell) for cell in row] for row in table.rows],
    }


def _cell(cell: Number | str) -> dict[str, Any]:
    if isinstance(cell, Number):
        return {"text": str(cell), "value": cell.value if math.isfinite(cell.value) else ""}
    return {"text": cell}


def _group(group: Group, colour: str, names: Sequence[str], most: int, folder: Path) -> dict[str, Any]:
    runs = [
        {
            "seed": run.seed,
            "folder": _link(run.path, folder),
            "record": {s: _record(run, s, names, most) for s in SPLITS},
        }
        for run in group.runs
    ]
    return {"label": group.label, "light": colour, "dark": style.ON_DARK.get(colour, colour), "runs": runs}


def _link(path: Path, folder: Path) -> str:
    """Makes the address of a run's folder relative to the page's; '' if it is not on this machine."""
    return quote(os.fsencode(os.path.relpath(path, folder))) + "/" if path.is_dir() else ""


def _record(run: Run, split: str, names: Sequence[str], most: int) -> dict[str, list[float | None]]:
    """Takes the columns of a split's record, thinned evenly to at most `most` lines that include the last."""
    lines = [line for line in run.record if line["split"] == split]
    every = -(-len(lines) // most) or 1
    kept = lines[::-1][::every][::-1]
    scales = {"step": 1.0, "seconds": 1.0} | {name: METRICS[name].scale for name in names}
    columns = {name: [_scaled(line, name, scale) for line in kept] for name, scale in scales.items()}
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}


def _scaled(line: Mapping[str, Any], name: str, scale: float) -> float | None:
    value = line.get(name)
    return float(f"{value * scale:.5g}") if value is not None and math.isfinite(value) else None
