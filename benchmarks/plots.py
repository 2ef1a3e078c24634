"""Plots of measurements."""

from typing import Any

from matplotlib.figure import Figure

from analysis.pictures import style


@style.quiet
def growth(rows: list[dict[str, Any]]) -> Figure:
    """Draws time and temporary memory against the number of tokens, both axes logarithmic.

    Args:
      rows: The rows of `benchmarks.attention.growth`.
    """
    figure = Figure(figsize=(7.6, 3.4))
    time, memory = figure.subplots(1, 2)
    lengths = [row["length"] for row in rows]
    for name, (colour, marker) in style.colours(rows[0]["cores"]).items():
        by_length = [(row["length"], row["cores"][name]) for row in rows]
        look = {"color": colour, "marker": marker, "label": name}
        timed = [(length, core["seconds"] * 1e3) for length, core in by_length if "seconds" in core]
        time.plot(*zip(*timed, strict=True), **look)
        planned = [(length, core["temp_bytes"] / 1e6) for length, core in by_length if "temp_bytes" in core]
        memory.plot(*zip(*planned, strict=True) if planned else ([], []), **look)
    time.set(ylabel="ms, forward + backward", title="time")
    memory.set(ylabel="MB", title="temporary memory")
    for axes in (time, memory):
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
    figure.legend(handles=time.lines, loc="outside lower center", ncols=3)
    figure.suptitle("Attention of one sequence: what grows with its length")
    return figure
