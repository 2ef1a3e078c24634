"""The table of trials: a file with the cells of one or several people, as `trials.json` holds them."""

import dataclasses
import json
import re
import statistics
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

from attention.errors import UsageError, in_line
from attention.types import Count, Number, Rule, Share, Size, at_least, below, build, filled, fits
from models.files import read_json
from train.cli.files import write_text

FIRST = ("stacked", "copying", "parity")  # trials that are made where none are named
SOLVED = 0.99  # from this accuracy on, a seed has solved a trial
MADE = ("versions", "devices", "git", "matmul_precision")  # of a result, with what it was made
BY_SIZE = ("accuracy", "cache_bytes")  # what a cell has at several sizes
SIZED = re.compile(r"(accuracy|cache_bytes)_at_\d{1,6}")
WIDTH = 12  # of a column, in letters, at least
Row = dict[str, Any]
Line = Annotated[str, Rule("text in one line", lambda text: in_line(text) == text)]


@dataclasses.dataclass(frozen=True)
class TrialTable:
    """The cells of a table."""

    trials: dict[str, dict[str, Any]]  # of each the `settings` that its cells have in common, by path, and `chance`
    rows: list[Row]  # cells, which have a `trial`, a `spec`, and accuracies or the reason why there are none
    made: list[dict[str, Any]]  # versions, devices and revisions of the runs

    @classmethod
    def read(cls, path: Path) -> "TrialTable":
        """Reads a table; raises a UsageError where the file holds none."""
        table = build(cls, read_json(path, "give a table that train.trials wrote"), str(path))
        trials = all(fits(_Common, of) for of in table.trials.values())
        rows = trials and all(_is_row(row, table.trials) for row in table.rows)
        if not rows or not all(fits(_HowMade, call) for call in table.made):
            raise UsageError(f"{path} is no table of trials, or it was damaged; make it anew with train.trials.")
        return table

    @classmethod
    def merged(cls, tables: Sequence["TrialTable"]) -> "TrialTable":
        """Joins tables; raises a UsageError where the cells of a trial were made otherwise, or a cell stands twice."""
        trials: dict[str, dict[str, Any]] = {}
        rows: dict[tuple[str, str], Row] = {}
        for table in tables:
            for trial, settings in table.trials.items():
                there = trials.setdefault(trial, settings)
                check_alike(trial, there, settings)
                trials[trial] = there | {"settings": settings["settings"] | there["settings"]}
            for row in table.rows:
                where = row["trial"], row["spec"]
                if "reason" in rows.setdefault(where, row):
                    rows[where] = row
                elif "reason" not in row and rows[where] != row:
                    raise UsageError(f"Two tables have {row['spec']} in the trial {row['trial']}; remove it from one.")
        made = [call for table in tables for call in table.made]
        return cls(trials, list(rows.values()), [call for place, call in enumerate(made) if call not in made[:place]])

    def beside(self, other: "TrialTable", trials: Container[str]) -> "TrialTable":
        """Puts the cells that another table has of some trials behind these, unless they stand here already."""
        tried = {row["trial"] for row in self.rows}.intersection(trials)
        ours = {(row["trial"], row["spec"]) for row in self.rows}
        rows = [row for row in other.rows if row["trial"] in tried and (row["trial"], row["spec"]) not in ours]
        settings = {trial: of for trial, of in other.trials.items() if trial in tried}
        made = [call for call in other.made if call not in self.made]
        return TrialTable(settings | self.trials, [*self.rows, *rows], [*self.made, *made])

    def write(self, path: Path) -> None:
        """Writes the table to a file, with a line for each cell."""
        write_text(path, _lines(dataclasses.asdict(self)))

    def text(self) -> str:
        """Writes a line for each mechanism: the mean accuracy in each trial, and how many seeds solved it."""
        trials = list(dict.fromkeys(row["trial"] for row in self.rows))
        cells = {(row["spec"], row["trial"]): _short(row) for row in self.rows}
        specs = list(dict.fromkeys(row["spec"] for row in self.rows))
        first, width = max(map(len, (*specs, "chance"))), max(WIDTH, *(len(trial) + 2 for trial in trials))
        chance = [f"{self.trials[trial]['chance']:.2f}" if trial in self.trials else "" for trial in trials]
        lines = [("", trials), *((spec, [cells.get((spec, trial), "") for trial in trials]) for spec in specs)]
        text = [
            f"{name:<{first}}  {''.join(f'{cell:<{width}}' for cell in of)}".rstrip()
            for name, of in [*lines, ("chance", chance)]
        ]
        reasons = [f"{row['spec']}, {row['trial']}: {row['reason']}" for row in self.rows if "reason" in row]
        return "\n".join([*text, "Accuracy at the best step, mean over seeds; how many solved it.", *reasons])

    def remarks(self) -> list[str]:
        """Says in what the runs differ that should not matter."""
        differ = [name for name in MADE if len({str(call[name]) for call in self.made}) > 1]
        return [f"The runs were made with different {', '.join(differ)}."] if differ else []


# Of the settings of a trial; those of the config are there too, by their paths.
Chosen = TypedDict(
    "Chosen", {"data.source": Line, "tuning.rates": Annotated[list[Number], filled], "tuning.seeds": Count}
)


class _Common(TypedDict):
    settings: Chosen
    chance: Annotated[Number, at_least(0), below(1)]


class _EmptyRow(TypedDict):
    trial: Line
    spec: Line
    reason: Line


class _FullRow(TypedDict):  # accuracies of other sizes stand beside these by names such as `accuracy_at_64`
    trial: Line
    spec: Line
    rate: Line
    seeds: Annotated[list[int], filled]
    diverged: Size
    accuracy: list[Share]
    steps: list[int]
    curves: list[list[Share]]
    parameters: NotRequired[Count]
    forward_flops_per_example: NotRequired[Count]


class _HowMade(TypedDict):
    versions: dict[Line, Line]
    devices: Line
    git: Line
    matmul_precision: Line


def check_alike(trial: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Raises a UsageError where the cells of a trial were made with other settings.

    A setting that only one of them has was declared later, and is as before.
    """
    first, second = ours["settings"], theirs["settings"]
    for name in sorted(first.keys() & second.keys()):
        if first[name] != second[name]:
            raise UsageError(
                f"The tables do not compare: in the trial {trial}, {name} was {first[name]!r} and {second[name]!r}; "
                "make one of them anew."
            )


def is_alike(trial: str, ours: Mapping[str, Any], theirs: Mapping[str, Any] | None) -> bool:
    """Tells whether another table has the trial with the same settings."""
    try:
        check_alike(trial, ours, theirs or {"settings": {}})
    except UsageError:
        return False
    return theirs is not None


def _lines(table: Mapping[str, Any]) -> str:
    """Writes JSON with a line for each trial, cell and call, so that a change of one is a change of one line."""
    trials = [f"{json.dumps(name)}: {json.dumps(of)}" for name, of in table["trials"].items()]
    parts = [
        '"trials": {\n' + ",\n".join(trials) + "\n}",
        *(f'"{name}": [\n' + ",\n".join(map(json.dumps, table[name])) + "\n]" for name in ("rows", "made")),
    ]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _is_row(row: Any, trials: Mapping[str, Any]) -> bool:
    """Tells whether a cell has a reason, or accuracies of each seed with numbers beside."""
    if fits(Mapping, row) and "reason" in row:
        return fits(_EmptyRow, row) and "accuracy" not in row
    if not fits(_FullRow, row) or row["trial"] not in trials:
        return False
    seeds, sized = len(row["seeds"]), {name: of for name, of in row.items() if name.startswith(BY_SIZE)}
    return (
        all(name in BY_SIZE or SIZED.fullmatch(name) for name in sized)
        and all(fits(list[Share], of) and len(of) == seeds for name, of in sized.items() if name.startswith("accuracy"))
        and fits(list[Count], [of for name, of in sized.items() if name.startswith("cache")])
        and len(row["curves"]) == seeds
        and all(len(curve) == len(row["steps"]) for curve in row["curves"])
    )


def _short(row: Row) -> str:
    if "reason" in row:
        return "-"
    solved = sum(accuracy >= SOLVED for accuracy in row["accuracy"])
    return f"{statistics.fmean(row['accuracy']):.2f} {solved}/{len(row['accuracy'])}"
