"""Pictures of a table of trials: accuracies of mechanisms, recall against the decode cache, and learning curves."""

import itertools
from collections.abc import Container, Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import trials
from analysis.pictures import style
from analysis.trials import Reached
from train.grids.trial_table import TrialTable

RECALL = ("stacked_narrow", "stacked", "stacked_wide")  # the same trial in three widths
# Coloured in the picture of recall: attention, and recurrences that write and forget in different ways.
NAMED = ("dot_product", "linear", "delta", "retention", "gated_delta", "state_space")
MAP = "Blues"


@style.quiet
def heat(table: TrialTable) -> Figure:
    """Draws a row for each mechanism and a column for each trial and size: mean accuracies, and seeds that solved it.

    The colour shows how far the mean is on the way from chance to 1.
    """
    columns = [(trial, name) for trial in table.trials for name in _ends(trials.sizes(table, trial))]
    rows = ordered(table)
    drawn = Figure(figsize=(1.9 + 0.62 * len(columns), 1.2 + 0.21 * len(rows)), layout="constrained")
    axes = drawn.subplots()
    shades = np.full((len(rows), len(columns)), np.nan)
    for (row, spec), (column, (trial, name)) in itertools.product(enumerate(rows), enumerate(columns)):
        found = trials.reached(trials.find(table, trial, spec), name)
        if found is None:
            axes.text(column, row, "–", ha="center", va="center", color="#6a6a6a", fontsize=7)
            continue
        shades[row, column] = above_chance(found.mean, table.trials[trial]["chance"])
        text = f"{100 * found.mean:.0f}" + (f" ({found.solved}/{found.seeds})" if found.solved > 0 else "")
        colour = "#fefefe" if shades[row, column] > 0.6 else "#010101"  # the same on dark pages
        axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=6)
    axes.imshow(shades, cmap=MAP, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), [_heading(*column) for column in columns], fontsize=6)
    axes.set_yticks(range(len(rows)), [style.plain(spec) for spec in rows], fontsize=7)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.grid(visible=False)
    drawn.suptitle(
        "Mean accuracy in %, and how many seeds reached 99 %; darker is further above chance, – was not tried",
        fontsize=8,
    )
    return drawn


def _heading(trial: str, name: str) -> str:
    size = trials.size_of(name)
    return "\n".join([*trial.split("_"), f"at {size}"] if size else trial.split("_"))


@style.quiet
def frontier(table: TrialTable, named: Iterable[str] = ()) -> Figure:
    """Draws recall against the bytes of the decode cache: a line for each mechanism, with a mark at each width.

    Args:
      table: A table with at least one trial of `RECALL`.
      named: Mechanisms to colour besides those in `NAMED`; all others are grey.
    """
    lines = {spec: line for spec in ordered(table) if (line := _held(table, spec))}
    looks = style.colours(spec for spec in dict.fromkeys([*named, *NAMED]) if spec in lines)
    drawn = Figure(figsize=(5.1, 3.6), layout="constrained")  # legible on a telephone
    axes = drawn.subplots()
    for spec, (colour, marker) in looks.items():
        equal = [other for other in looks if np.isclose(lines[other][0][0], lines[spec][0][0], rtol=0.2)]
        aside = 1.06 ** (equal.index(spec) - (len(equal) - 1) / 2)  # marks of equal caches stand side by side
        sizes, means = [aside * size for size, _ in lines[spec]], [100 * found.mean for _, found in lines[spec]]
        axes.plot(sizes, means, color=colour, marker=marker, lw=1.2, ms=5, zorder=3, label=style.plain(spec))
        ends = [[100 * end for end in found.interval] for _, found in lines[spec]]
        axes.vlines(sizes, *zip(*ends, strict=True), color=colour, lw=2.5, alpha=0.4, zorder=2)
    _mark_others(axes, lines, looks)
    trial = next(trial for trial in RECALL if trial in table.trials)
    pairs = trials.size_of(trials.sizes(table, trial)[-1])
    axes.axhline(100 * table.trials[trial]["chance"], color="#6a6a6a", lw=0.8, ls="--", label="chance")
    axes.set(xscale="log", ylim=(0, 104), xlabel=f"decode cache after {pairs} pairs, KiB", ylabel="recalled, %")
    axes.set_xticks(ticks := [2**power for power in range(9)], map(str, ticks))
    axes.set_xlim(right=2**9.4)  # room for names
    axes.minorticks_off()
    drawn.legend(loc="outside lower center", ncols=3, fontsize=7)
    drawn.suptitle(f"Recall of {pairs} pairs against the size of the decode cache")
    return drawn


def _mark_others(axes: Axes, lines: Mapping[str, list[tuple[float, Reached]]], looks: Container[str]) -> None:
    """Marks other mechanisms in grey, with the names of those that recall under half of what a smaller cache does."""
    others = [(size, 100 * found.mean, spec) for spec in lines if spec not in looks for size, found in lines[spec]]
    if not others:
        return
    axes.plot(*zip(*[other[:2] for other in others], strict=True), "o", color="#a0a0a0", ms=2.5, label="others")
    marks = [(size, 100 * found.mean) for line in lines.values() for size, found in line]
    low = [one for one in others if any(size < one[0] and mean > 2 * one[1] for size, mean in marks)]
    for size, group in itertools.groupby(sorted(low), key=lambda one: one[0]):
        near = list(group)
        names = ", ".join(style.plain(spec) for _, _, spec in reversed(near))
        axes.annotate(names, (size, max(mean for _, mean, _ in near)), (3, 2), textcoords="offset points", fontsize=6)


def _held(table: TrialTable, spec: str) -> list[tuple[float, Reached]]:
    """Lists the cache's kilobytes and the recall at the greatest size, for each width."""
    cells = [(trials.find(table, trial, spec), trials.sizes(table, trial)[-1:]) for trial in RECALL]
    names = [(cell, name, name.replace("accuracy", "cache_bytes")) for cell, of in cells for name in of]
    found = [(cell[cache] / 1024, trials.reached(cell, name)) for cell, name, cache in names if cache in cell]
    return sorted((pair for pair in found if pair[1]), key=lambda pair: pair[0])


@style.quiet
def curves(table: TrialTable, shown: Sequence[str]) -> Figure:
    """Draws validation accuracy by step, in a panel for each trial; thin lines are seeds."""
    names = list(table.trials)
    columns = min(len(names), 3)
    rows = -(-len(names) // columns)
    drawn = Figure(figsize=(6.4, 2.0 * rows + 0.7), layout="constrained")
    looks = style.colours(shown)
    panels = list(drawn.subplots(rows, columns, squeeze=False).flat)
    for axes, trial in zip(panels, names, strict=False):
        for spec in shown:
            if cell := trials.find(table, trial, spec):
                seeds = 100 * np.array(cell["curves"])
                colour, marker = looks[spec]
                axes.plot(cell["steps"], seeds.T, color=colour, lw=0.5, alpha=0.4)
                axes.plot(cell["steps"], seeds.mean(0), color=colour, marker=marker, ms=3, label=style.plain(spec))
        axes.axhline(100 * table.trials[trial]["chance"], color="#6a6a6a", lw=0.8, ls="--")
        axes.set_title(trial, fontsize=8)
        axes.set(ylim=(0, 104), xlabel="step")
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    handles = {
        label: line for axes in drawn.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=6)
    drawn.suptitle("Accuracy on validation data, %; dashed: chance")
    return drawn


def ordered(table: TrialTable) -> list[str]:
    """Lists the mechanisms, the best first, by how far they come from chance to 1 in the trials that all of them have.

    Of equals, to a hundredth, the one with more trials comes first, then the one that is better in these.
    """
    specs = list(dict.fromkeys(row["spec"] for row in table.rows))
    shared = [trial for trial in table.trials if all(_above_chance(table, trial, spec) for spec in specs)]

    def score(spec: str) -> tuple[float, int, float]:
        found = [share for trial in table.trials for share in _above_chance(table, trial, spec)]
        common = [share for trial in shared for share in _above_chance(table, trial, spec)]
        return round(sum(common) / max(1, len(common)), 2), len(found), sum(found)

    return sorted(specs, key=score, reverse=True)


def _above_chance(table: TrialTable, trial: str, spec: str) -> list[float]:
    found = [trials.reached(trials.find(table, trial, spec), name) for name in trials.sizes(table, trial)]
    return [above_chance(reached.mean, table.trials[trial]["chance"]) for reached in found if reached]


def above_chance(accuracy: float, chance: float) -> float:
    """Computes how far an accuracy is on the way from chance to 1; 0 below chance."""
    return max(0.0, (accuracy - chance) / (1 - chance))


def _ends(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*names[:1], *names[-1:]]))
