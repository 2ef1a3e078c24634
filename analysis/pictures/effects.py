"""A picture of declared comparisons: the difference of every seed, the mean, its 95 % interval, margin and claim."""

import textwrap
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis import metrics, statistics
from analysis.pictures import style
from analysis.verdicts import Verdict
from train.grids.declaration import Declaration

CLAIMED = {"better": 1, "as much": 1, "worse": -1}
WIDEST = 46  # most characters in a line of a name


@style.quiet
def figure(verdicts: Sequence[Verdict], declared: Declaration) -> Figure:
    """Draws a row for each comparison: dots are seeds, the mark their mean, the bar its interval, ◇ the claimed effect.

    Args:
      verdicts: The verdicts, in the order of the comparisons.
      declared: The declaration. The grey band around 0 is its margin.
    """
    metric = metrics.find(declared.metric)
    names = [f"{textwrap.fill(verdict.comparison.name, WIDEST)}\n{verdict.words}" for verdict in verdicts]
    lines = sum(name.count("\n") + 1 for name in names)
    drawn = Figure(figsize=(6.4, 1.1 + 0.17 * lines), layout="constrained")
    axes = drawn.subplots()
    margin = declared.margin * metric.scale
    axes.axvspan(-margin, margin, color="#808080", alpha=0.2, lw=0)
    axes.axvline(0, color=style.BLACK, lw=0.8)
    for place, verdict in enumerate(verdicts):
        values = np.asarray(verdict.differences) * metric.scale
        if len(values) > 1:
            summary = statistics.summary(values)
            ends = [summary.mean - summary.half_width, summary.mean + summary.half_width]
            axes.plot(ends, [place] * 2, color=style.BLUE, lw=6, alpha=0.3, solid_capstyle="butt")
            axes.plot(summary.mean, place, "|", color=style.BLUE, ms=10, mew=2.2)
        axes.plot(values, [place] * len(values), "o", color="#404040", ms=2.5, mew=0)
        if verdict.comparison.effect:
            side = CLAIMED.get(verdict.comparison.claim, 0) * (-1 if metric.lower else 1)
            axes.plot(side * verdict.comparison.effect * metric.scale, place, "D", color=style.RED, ms=5, mfc="none")
    axes.set_yticks(range(len(names)), [style.plain(name) for name in names])
    unit = f", {metric.unit}" if metric.unit and not metric.title.startswith(metric.unit) else ""
    axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=f"difference in test {metric.title.removesuffix(', %')}{unit}")
    axes.grid(axis="y", visible=False)
    drawn.suptitle("Seeds (dots), means, 95 % intervals; grey: the margin; diamonds: what is claimed", fontsize=8)
    return drawn
