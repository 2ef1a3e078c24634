"""Hosseini's Figs. 2, 3 and 4: operations of four mechanisms by eq. 24, counted analytically, and counted by XLA."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis.layer_operations import Count, grid
from analysis.pictures.style import MECHANISMS, SURFACE, quiet
from train.cli.terminal import counted

COLOURS = {name: MECHANISMS[name][0] for name in ("dot_product", "optimised", "efficient", "super")}
APART = 6  # fewer sizes are drawn as separate points

Sizes = Sequence[int]


@quiet
def curves(counts: Mapping[str, tuple[Count, Sizes]], length: int, heads: int) -> Figure:
    """Draws operations against d, with a panel for each way to count, as in Hosseini's Fig. 2.

    Args:
      counts: For each title, a way to count and the widths at which it is drawn.
      length: Number of tokens, ℓ.
      heads: Number of heads, h.
    """
    figure = Figure(figsize=(9, 3.1))
    for axes, (title, (count, widths)) in zip(figure.subplots(1, len(counts)), counts.items(), strict=True):
        for name, colour in COLOURS.items():
            values = [count(name, length, width, heads) / 1e6 for width in widths]
            dashes = "--" if name == "super" else "-"  # its line may lie on that of optimised
            dashes, marker = ("none", "o") if len(widths) < APART else (dashes, None)
            axes.plot(widths, values, ls=dashes, color=colour, label=name, marker=marker, ms=4)
        axes.set(title=title, xlabel="d", ylabel="MFLOP, forward and backward", xlim=(0, None), ylim=(0, None))
    axes.legend()
    figure.suptitle(f"Operations of a layer by its width, {length} tokens, {counted(heads, 'head')}")
    return figure


@quiet
def heat_maps(counts: Mapping[str, tuple[Count, Sizes]], heads: Sizes) -> Figure:
    """Draws by how much standard exceeds Efficient Attention, a row for each way to count, as in Hosseini's Fig. 3.

    Args:
      counts: For each title, a way to count and the powers of two that are lengths and widths.
      heads: The number of heads of each column.
    """
    figure = Figure(figsize=(9, 0.3 + 2.3 * len(counts)))
    rows = figure.subplots(len(counts), len(heads), squeeze=False)
    for row, (title, (count, sizes)) in zip(rows, counts.items(), strict=True):
        for axes, h in zip(row, heads, strict=True):
            percent = [[100 * value for value in row] for row in grid(count, h, sizes, sizes)]
            image = _heat_map(axes, percent, sizes)
            axes.set_title(f"{title}, {counted(h, 'head')}\nmean {np.mean(percent):.0f} %")
    figure.colorbar(image, ax=rows, label="standard over Efficient, % more", shrink=0.6)
    figure.suptitle("How many more operations standard attention takes than Efficient Attention")
    return figure


def _heat_map(axes: Axes, percent: list[list[float]], sizes: Sizes) -> Any:
    axes.grid(visible=False)
    image = axes.imshow(percent, origin="lower", vmin=0, vmax=100, cmap=SURFACE)
    step = 1 if len(sizes) < APART else 2
    ticks = range(0, len(sizes), step)
    axes.set_xticks(ticks, [str(sizes[i]) for i in ticks], rotation=90)
    axes.set_yticks(ticks, [str(sizes[i]) for i in ticks])
    axes.set(xlabel="ℓ", ylabel="d")
    return image


@quiet
def surfaces(counts: Mapping[str, tuple[Count, Sizes]]) -> Figure:
    """Draws operations over ℓ and d with one head, a panel for each way to count, as in Hosseini's Fig. 4."""
    figure = Figure(figsize=(9, 3.5))
    panels = figure.subplots(1, len(counts), subplot_kw={"projection": "3d"})
    for axes, (title, (count, sizes)) in zip(panels, counts.items(), strict=True):
        lengths, widths = np.meshgrid(sizes, sizes)
        for name, colour in COLOURS.items():
            values = np.array([[count(name, length, width, 1) / 1e6 for length in sizes] for width in sizes])
            if len(sizes) < APART:
                axes.scatter(lengths, widths, values, color=colour, s=9, depthshade=False)
            else:
                axes.plot_surface(lengths, widths, values, color=colour, alpha=0.6, shade=False, ec="white", lw=0.2)
        axes.set(xlabel="ℓ", ylabel="d", zlabel="MFLOP")
        axes.set_title(title, y=0.98)
        axes.set_box_aspect((1, 1, 0.9), zoom=0.75)
        axes.view_init(18, -60)
        axes.locator_params(nbins=4)
    figure.suptitle("Operations of a layer by tokens and width, one head")
    handles = [Patch(color=colour, alpha=0.6, label=name) for name, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    return figure
