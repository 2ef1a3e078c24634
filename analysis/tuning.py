"""The trials of tuned sweeps: a row for each setting, a column for each value that was tried."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis import metrics
from analysis.tables import Number, ResultColumn, ResultTable
from train.cli.terminal import counted


def table(sweeps: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Writes the means over the trials' seeds on validation data, and the chosen value; empty without trials.

    A dash stands for a loss that was not finite, or a value that was not tried.
    """
    tried = [sweep for sweep in sweeps if sweep.get("tune")]
    rows = [(sweep["tune"], name, cell) for sweep in tried for name, cell in sweep["cells"].items() if "tried" in cell]
    if not rows:
        return ResultTable(())
    values = sorted({value for _, _, cell in rows for value in cell["tried"]}, key=float)
    columns = [ResultColumn("setting", "setting", tuple(name for _, name, _ in rows))]
    for value in values:
        cells = tuple(_mean(cell["tried"].get(value, ()), tune["metric"]) for tune, _, cell in rows)
        columns.append(ResultColumn(value, value, cells))
    chosen = tuple(cell["chosen"].get(tune["field"], "") for tune, _, cell in rows)
    return ResultTable((*columns, ResultColumn("chosen", "chosen", chosen)))


def notes(sweeps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describes what was tried and how the value was chosen."""
    said = []
    for tune in (sweep["tune"] for sweep in sweeps if sweep.get("tune")):
        title = metrics.find(tune["metric"]).title
        said.append(
            f"{tune['field']} was tuned in trials of {tune['length']} of a run's length with "
            f"{counted(tune['seeds'], 'seed')}; the table has their {title} on validation data, "
            f"or a dash if the loss was not finite. {tune['rule']}"
        )
    return list(dict.fromkeys(said))


def _mean(scores: Sequence[float | None], metric: str) -> Number:
    return Number(math.nan if not scores or None in scores else float(np.mean(scores)), metrics.find(metric))
