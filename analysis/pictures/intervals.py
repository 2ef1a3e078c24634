"""A metric of several settings: each seed, the mean over seeds, and its confidence interval.

python -m analysis.pictures comparison runs/digits --out=comparison
python -m analysis.pictures comparison benchmarks/results/digits_cpu.json --out=docs/images/comparison_digits
"""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from analysis import metrics, runs, statistics
from analysis.metrics import Metric
from analysis.pictures import style
from attention.errors import UsageError, in_line
from models.files import read_json
from train.cli.terminal import counted

Values = Mapping[str, Sequence[float]]


def read(places: Sequence[Path], name: str) -> Values:
    """Reads test values at the best step: for each setting, a value for each seed.

    Args:
      places: Folders of finished runs and archives, as for `analysis.report`, or one file of `studies.digits`.
      name: A key of `analysis.metrics.METRICS`.

    Raises:
      UsageError: The places hold no such runs, or no run has the metric.
    """
    metrics.find(name)
    values = _recorded(places[0], name) if len(places) == 1 and places[0].is_file() else {}
    if not values:
        values = {group.label: [run.value(name) for run in group.runs] for group in runs.find(places).groups}
    if not any(np.isfinite(row).all() for row in values.values()):
        raise UsageError(f"Nothing in {', '.join(map(str, places))} has the metric {name}.")
    return values


def _recorded(path: Path, name: str) -> Values:
    """Reads the values from a file of `studies.digits`; nothing from other files, such as archives."""
    try:
        rows = read_json(path)["runs"]
        return {
            in_line(label): [float(run["best"]["test"].get(name, np.nan)) for run in row] for label, row in rows.items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}


@style.quiet
def figure(values: Values, metric: Metric, baselines: Container[str] = (), title: str = "") -> Figure:
    """Draws the best setting on top: dots are seeds, the mark is their mean, the bar its t confidence interval.

    Args:
      values: The values of each setting; settings with NaN are left out and named in the title.
      metric: The metric of the values.
      baselines: Settings whose means are drawn as lines through all rows.
      title: The title; '' says what is drawn.
    """
    rows = {label: np.asarray(row) * metric.scale for label, row in values.items() if np.isfinite(row).all()}
    order = sorted(rows, key=lambda label: rows[label].mean(), reverse=not metric.lower)
    looks = style.colours(order)
    drawn = Figure(figsize=(5.1, max(2.2, 1.0 + 0.22 * len(order))))
    axes = drawn.subplots()
    for place, label in enumerate(order):
        summary, colour = statistics.summary(rows[label]), looks[label][0]
        if len(rows[label]) > 1:
            ends = [summary.mean - summary.half_width, summary.mean + summary.half_width]
            axes.plot(ends, [place] * 2, color=colour, lw=6, alpha=0.25, solid_capstyle="butt")
        axes.plot(rows[label], place + _stacked(rows[label]), "o", color="#404040", ms=2.5, mew=0)
        axes.plot(summary.mean, place, "|", color=colour, ms=9, mew=2.2)
        if label in baselines:
            axes.axvline(summary.mean, color=colour, lw=0.8, ls=":", zorder=0)
    axes.set_yticks(range(len(order)), [style.plain(label) for label in order])
    axes.set(ylim=(len(order) - 0.4, -0.6), xlabel=f"test {metric.title}")
    axes.grid(axis="y", visible=False)
    drawn.suptitle(style.plain(title or _title(len(order), [label for label in values if label not in rows])))
    return drawn


def _stacked(row: Float[np.ndarray, "seeds"]) -> Float[np.ndarray, "seeds"]:
    """Computes each seed's distance from the row's middle, which puts equal values above each other."""
    return np.array([0.22 * ((row[:n] == value).sum() - ((row == value).sum() - 1) / 2) for n, value in enumerate(row)])


def _title(settings: int, missing: Sequence[str]) -> str:
    title = f"{counted(settings, 'setting')}: seeds (dots), their means, and 95 % intervals of the means"
    return title + (f"\nwithout a finite value: {', '.join(missing)}" if missing else "")
