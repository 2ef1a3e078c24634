"""The table of trials, as `trials.json` holds it: cells that one or several people have made."""

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

FIRST = ("stacked", "copying", "parity")  # the trials that are made where none is named
SOLVED = 0.99  # the accuracy from which on a seed has solved a trial
MADE = ("versions", "devices", "git", "matmul_precision")  # copied from results: with what they were made
BY_SIZE = ("accuracy", "cache_bytes")  # numbers that a cell has for several sizes
SIZED = re.compile(r"(accuracy|cache_bytes)_at_\d{1,6}")
WIDTH = 12  # least width of a column, in characters
Row = dict[str, Any]
Line = Annotated[str, Rule("text in one line", lambda text: in_line(text) == text)]


@dataclasses.dataclass(frozen=True)
class TrialTable:
    """The cells of a table."""

    trials: dict[str, dict[str, Any]]  # each trial's `chance` and the `settings` that its cells share, by path
    rows: list[Row]  # cells: each has a `trial`, a `spec`, and accuracies or the reason why it has none
    made: list[dict[str, Any]]  # versions, devices and revisions of the runs

    @classmethod
    def read(cls, path: Path) -> "TrialTable":
        """Reads a table; raises a UsageError where the file holds none."""
        table = build(cls, read_json(path, "give a table that train.trials wrote"), str(path))
        trials = all(fits(_Trial, trial) for trial in table.trials.values())
        rows = trials and all(_is_row(row, table.trials) for row in table.rows)
        if not rows or not all(fits(_HowMade, call) for call in table.made):
            raise UsageError(f"{path} is no table of trials, or it was damaged; make it again with train.trials.")
        return table

    @classmethod
    def merged(cls, tables: Sequence["TrialTable"]) -> "TrialTable":
        """Merges tables; raises a UsageError where settings of a trial differ or a cell has two results."""
        trials: dict[str, dict[str, Any]] = {}
        rows: dict[tuple[str, str], Row] = {}
        for table in tables:
            for name, trial in table.trials.items():
                known = trials.setdefault(name, trial)
                check_alike(name, known, trial)
                trials[name] = known | {"settings": trial["settings"] | known["settings"]}
            for row in table.rows:
                place = row["trial"], row["spec"]
                if "reason" in rows.setdefault(place, row):
                    rows[place] = row
                elif "reason" not in row and rows[place] != row:
                    raise UsageError(f"Two tables have {row['spec']} in the trial {row['trial']}; remove it from one.")
        made = [call for table in tables for call in table.made]
        return cls(trials, list(rows.values()), [call for place, call in enumerate(made) if call not in made[:place]])

    def beside(self, other: "TrialTable", trials: Container[str]) -> "TrialTable":
        """Appends another table's cells in some of this table's trials, unless this table has them."""
        shared = {row["trial"] for row in self.rows if row["trial"] in trials}
        ours = {(row["trial"], row["spec"]) for row in self.rows}
        rows = [row for row in other.rows if row["trial"] in shared and (row["trial"], row["spec"]) not in ours]
        settings = {name: trial for name, trial in other.trials.items() if name in shared}
        made = [call for call in other.made if call not in self.made] if rows else []
        return TrialTable(settings | self.trials, [*self.rows, *rows], [*self.made, *made])

    def write(self, path: Path) -> None:
        """Writes the table as JSON, each trial, cell and call on a line of its own, so that diffs are short."""
        trials = ",\n".join(f"{json.dumps(name)}: {json.dumps(trial)}" for name, trial in self.trials.items())
        rows, made = (",\n".join(map(json.dumps, part)) for part in (self.rows, self.made))
        write_text(path, f'{{\n"trials": {{\n{trials}\n}},\n"rows": [\n{rows}\n],\n"made": [\n{made}\n]\n}}\n')

    def text(self) -> str:
        """Writes a line for each mechanism: its mean accuracy in each trial, and how many seeds solved the trial."""
        trials = list(dict.fromkeys(row["trial"] for row in self.rows))
        specs = dict.fromkeys(row["spec"] for row in self.rows)
        cells = {(row["spec"], row["trial"]): _short(row) for row in self.rows}
        chance = [f"{self.trials[trial]['chance']:.2f}" if trial in self.trials else "" for trial in trials]
        lines = {"": trials} | {spec: [cells.get((spec, trial), "") for trial in trials] for spec in specs}
        lines["chance"] = chance
        first, width = max(map(len, lines)), max(WIDTH, *(len(trial) + 2 for trial in trials))
        text = [
            f"{name:<{first}}  {''.join(f'{cell:<{width}}' for cell in line)}".rstrip() for name, line in lines.items()
        ]
        reasons = [f"{row['spec']}, {row['trial']}: {row['reason']}" for row in self.rows if "reason" in row]
        return "\n".join([*text, "Accuracy at the best step, mean over seeds; how many solved it.", *reasons])

    def remarks(self) -> list[str]:
        """Says what differs between the runs and should not matter."""
        differ = [name for name in MADE if len({str(call[name]) for call in self.made}) > 1]
        return [f"The runs were made with different {', '.join(differ)}."] if differ else []


# Settings that a trial must have; those of the config stand beside them, by path.
_Settings = TypedDict(
    "_Settings", {"data.source": Line, "tuning.rates": Annotated[list[Number], filled], "tuning.seeds": Count}
)


class _Trial(TypedDict):
    settings: _Settings
    chance: Annotated[Number, at_least(0), below(1)]


class _EmptyRow(TypedDict):
    trial: Line
    spec: Line
    reason: Line


class _FullRow(TypedDict):  # beside accuracies at other sizes, with names such as `accuracy_at_64`
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
    """Raises a UsageError where a trial's cells were made with different settings.

    A setting that only one side has was introduced later, and changes nothing.
    """
    if name := difference(ours, theirs):
        first, second = ours["settings"][name], theirs["settings"][name]
        raise UsageError(
            f"The tables are not comparable: in the trial {trial}, {name} was {first!r} and {second!r}; "
            "make one of them again."
        )


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Names the first setting with two values; '' where there is none."""
    first, second = ours["settings"], theirs["settings"]
    return next((name for name in sorted(first.keys() & second.keys()) if first[name] != second[name]), "")


def _is_row(row: Any, trials: Mapping[str, Any]) -> bool:
    """Tells whether a cell is valid: it has a reason, or the accuracies of each seed."""
    if fits(Mapping, row) and "reason" in row:
        return fits(_EmptyRow, row) and "accuracy" not in row
    if not fits(_FullRow, row) or row["trial"] not in trials:
        return False
    seeds, sized = len(row["seeds"]), {name: value for name, value in row.items() if name.startswith(BY_SIZE)}
    accuracies = [value for name, value in sized.items() if name.startswith("accuracy")]
    return (
        all(name in BY_SIZE or SIZED.fullmatch(name) for name in sized)
        and all(fits(list[Share], values) and len(values) == seeds for values in accuracies)
        and fits(list[Count], [value for name, value in sized.items() if name.startswith("cache")])
        and len(row["curves"]) == seeds
        and all(len(curve) == len(row["steps"]) for curve in row["curves"])
    )


def _short(row: Row) -> str:
    if "reason" in row:
        return "-"
    solved = sum(accuracy >= SOLVED for accuracy in row["accuracy"])
    return f"{statistics.fmean(row['accuracy']):.2f} {solved}/{len(row['accuracy'])}"
