"""A metric of several settings side by side: each seed, the mean over seeds, and its confidence interval.

python -m analysis.pictures comparison runs/digits --out=comparison
python -m analysis.pictures comparison benchmarks/results/digits_cpu.json --out=docs/images/comparison_digits
"""

import json
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import metrics, runs, statistics
from analysis.metrics import Metric
from analysis.pictures import style
from attention.errors import UsageError

Values = Mapping[str, Sequence[float]]


def read(places: Sequence[Path], name: str) -> Values:
    """Reads the test values at the best step: a row for each setting, and in it a value for each seed.

    Args:
      places: Folders of finished runs and archives, as `analysis.report` takes them, or one file of
        `studies.digits`.
      name: A key of `analysis.metrics.METRICS`.

    Raises:
      UsageError: The places hold no such runs, or no run has the metric.
    """
    metrics.find(name)
    recorded = _recorded(places[0]) if len(places) == 1 and places[0].is_file() else {}
    if recorded:
        values = {label: [run["best"]["test"].get(name, np.nan) for run in row] for label, row in recorded.items()}
    else:
        values = {group.label: [run.value(name) for run in group.runs] for group in runs.find(places).groups}
    if not any(np.isfinite(row).all() for row in values.values()):
        raise UsageError(f"Nothing in {', '.join(map(str, places))} has the metric {name}.")
    return values


def _recorded(path: Path) -> Mapping[str, Sequence[Any]]:
    """Returns the runs of a file of `studies.digits` by setting; empty for any other file."""
    try:
        recorded = json.loads(path.read_text(encoding="utf-8"))["runs"]
    except (KeyError, TypeError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}  # an archive has a list


@style.quiet
def figure(values: Values, metric: Metric, baselines: Container[str] = ()) -> Figure:
    """Draws the best setting on top: dots are seeds, the mark is their mean, the bar its t confidence interval.

    Args:
      values: A row for each setting; a row with NaN is left out.
      metric: The metric of the values.
      baselines: Settings that are drawn in red, with a line through all rows at their means.
    """
    rows = {label: np.asarray(row) * metric.scale for label, row in values.items() if np.isfinite(row).all()}
    order = sorted(rows, key=lambda label: rows[label].mean(), reverse=not metric.lower)
    drawn = Figure(figsize=(6.4, 0.7 + 0.19 * len(order)))
    axes = drawn.subplots()
    for place, label in enumerate(order):
        summary, colour = statistics.summary(rows[label]), style.RED if label in baselines else style.BLUE
        if len(rows[label]) > 1:
            ends = [summary.mean - summary.half_width, summary.mean + summary.half_width]
            axes.plot(ends, [place] * 2, color=colour, lw=5, alpha=0.25, solid_capstyle="butt")
        axes.plot(rows[label], [place] * len(rows[label]), "o", color="#404040", ms=2.5, mew=0)
        axes.plot(summary.mean, place, "|", color=colour, ms=8, mew=2)
        if label in baselines:
            axes.axvline(summary.mean, color=colour, lw=0.8, ls=":", zorder=0)
    axes.set_yticks(range(len(order)), [style.plain(label) for label in order])
    axes.set(ylim=(len(order) - 0.5, -0.5), xlabel=f"test {metric.title}")
    axes.grid(axis="y", visible=False)
    return drawn
