"""A picture of a tuned sweep's trials: a line for each setting, over the values that were tried."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from analysis import metrics
from analysis.pictures import style


@style.quiet
def figure(sweep: Mapping[str, Any]) -> Figure:
    """Draws means over the trials' seeds on validation data, with the chosen value filled.

    Values whose loss was not finite are left out.
    """
    tune, metric = sweep["tune"], metrics.find(sweep["tune"]["metric"])
    drawn = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = drawn.subplots()
    looks = style.colours(sweep["cells"])
    for name, cell in sweep["cells"].items():
        values = [value for value, scores in cell.get("tried", {}).items() if None not in scores]
        values.sort(key=float)
        means = [np.mean(cell["tried"][value]) * metric.scale for value in values]
        colour, marker = looks[name]
        tried = [float(value) for value in values]
        axes.plot(tried, means, marker, ls="-", color=colour, mfc="white", label=style.plain(name))
        chosen = cell["chosen"].get(tune["field"])
        if chosen in values:
            axes.plot(float(chosen), means[values.index(chosen)], marker, color=colour)
    axes.set(xscale="log", xlabel=tune["field"], ylabel=f"{metric.title}, on validation data")
    axes.legend(fontsize=6)
    drawn.suptitle("What was tried, and (filled) what was chosen")
    return drawn
