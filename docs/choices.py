"""Tables of which mechanisms meet a need, from the kept table of trials."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from analysis import trials
from analysis.tables import plain_markdown
from analysis.trials import Reached
from attention.errors import listed
from train.grids.trial_table import FIRST, TrialTable
from train.grids.trying import KEPT

NEEDS = {
    "stacked": "recall a value by its key, of four times as many pairs as in training",
    "recall": "recall it where key and value are apart, of twice as many pairs",
    "rewritten": "replace what was said of a key before, with twice as many keys",
    "copying": "copy a sequence, twice as long as in training",
    "selective": "pick what matters from among blanks, in order",
    "parity": "follow a state with two values, four times as long as in training",
    "permutations": "follow a state with six values, twice as long",
}
LISTED = 9  # most mechanisms in a cell
WIDEST = ("stacked_wide", "stacked")  # the trials of recall, the widest models first


@functools.cache
def kept() -> TrialTable:
    """Reads the kept table."""
    return TrialTable.read(KEPT)


def needs() -> str:
    """Writes a row for each need whose trial was run: the mechanisms that meet it, and those that do not."""
    rows = []
    for trial, need in NEEDS.items():
        if trial in kept().trials:
            can, cannot, undecided = trials.able(kept(), trial)
            rows.append((f"{need} (`{trial}`)", *map(_listed, (can, cannot, undecided))))
    return plain_markdown(("what you need", "can", "cannot", "undecided"), rows)


def states() -> str:
    """Tabulates what mechanisms recall whose decode cache has one size, in the widest models tried, best first."""
    trial = next(trial for trial in WIDEST if trial in kept().trials)
    names = trials.sizes(kept(), trial)
    cells = [row for row in kept().rows if row["trial"] == trial and _is_constant(row)]
    rows = []
    for row in sorted(cells, key=lambda row: -trials.reached(row, names[-1]).mean):
        recalled = (_with_interval(trials.reached(row, name)) for name in names)
        rows.append((f"`{row['spec']}`", f"{row['cache_bytes'] / 1024:.0f}", *recalled))
    sizes = (f"recall of {trials.size_of(name)} pairs, %" for name in names[1:])
    return plain_markdown(("mechanism", "cache, KiB", "recall as in training, %", *sizes), rows)


def _with_interval(found: Reached) -> str:
    low, high = found.interval
    return f"{100 * found.mean:.0f} ({100 * low:.0f} – {100 * high:.0f})"


def _is_constant(row: dict[str, Any]) -> bool:
    """Tells whether a cell of recall has a decode cache as large after the most pairs as after those of training."""
    return "cache_bytes" in row and {size for name, size in row.items() if name.startswith("cache_bytes")} == {
        row["cache_bytes"]
    }


def numbers() -> Iterator[tuple[str, str]]:
    """Yields names and texts of the numbers in sentences: mean accuracies at each size."""
    for row in kept().rows:
        for name in trials.sizes(kept(), row["trial"]):
            if found := trials.reached(row, name):
                at = trials.size_of(name)
                yield f"trial {row['trial']} {row['spec']}{f' {at}' if at else ''}", f"{100 * found.mean:.0f}"
    tried = {trial: {row["spec"] for row in kept().rows if row["trial"] == trial} for trial in kept().trials}
    yield "trials tried", str(len(set().union(*tried.values())))
    yield "trials all three", str(len(set.intersection(*(tried[trial] for trial in FIRST if trial in tried))))


def _listed(specs: Sequence[str]) -> str:
    return listed([f"`{spec}`" for spec in specs], LISTED) or "–"
