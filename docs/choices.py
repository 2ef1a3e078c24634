"""Tables of which mechanisms meet a need, from the kept table of trials."""

import functools
from collections.abc import Iterator, Sequence

from analysis import trials
from analysis.tables import plain_markdown
from train.grids.trial_table import TrialTable
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
            rows.append((f"{need} (`{trial}`)", _listed(can), _listed(cannot), str(len(undecided))))
    return plain_markdown(("what you need", "can", "cannot", "undecided"), rows)


def caches() -> str:
    """Names the mechanisms whose decode cache is as large after 128 pairs as after 32."""
    cells = [row for row in kept().rows if row["trial"] == "stacked" and "cache_bytes" in row]
    same = [row["spec"] for row in cells if row["cache_bytes"] == row.get("cache_bytes_at_128")]
    return ", ".join(f"`{spec}`" for spec in same) or "none that was tried"


def numbers() -> Iterator[tuple[str, str]]:
    """Yields names and texts of the numbers in sentences: mean accuracies at each size."""
    for row in kept().rows:
        for name in trials.sizes(kept(), row["trial"]):
            if found := trials.reached(row, name):
                at = trials.size_of(name)
                yield f"trial {row['trial']} {row['spec']}{f' {at}' if at else ''}", f"{100 * found.mean:.0f}"
    yield "trials tried", str(len({row["spec"] for row in kept().rows}))


def _listed(specs: Sequence[str]) -> str:
    text = ", ".join(f"`{spec}`" for spec in specs[:LISTED])
    more = f" and {len(specs) - LISTED} more" if len(specs) > LISTED else ""
    return text + more or "–"
