"""Plots of measurements."""

from pathlib import Path
from typing import Any


def growth(rows: list[dict[str, Any]], path: Path) -> None:
    """Plots time and temporary memory against the number of tokens, both axes logarithmic.

    Args:
      rows: The rows of `benchmarks.attention.growth`.
      path: The picture's file.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    time, memory = figure.subplots(1, 2)
    for name in rows[0]["cores"]:
        by_length = [(row["length"], row["cores"][name]) for row in rows]
        timed = [(length, core["seconds"] * 1e3) for length, core in by_length if "seconds" in core]
        time.plot(*zip(*timed, strict=True), marker="o", label=name)
        memory.plot(*zip(*((length, core["temp_bytes"] / 1e6) for length, core in by_length), strict=True), marker="o")
    time.set(ylabel="ms, forward + backward")
    memory.set(ylabel="temporary memory, MB")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="tokens", xticks=[row["length"] for row in rows])
        axes.set_xticks([row["length"] for row in rows], [str(row["length"]) for row in rows])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    time.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=120)
