"""The grid of a sweep: which configs it has, what they are called, and whether it extends another."""

import dataclasses
import itertools
import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError
from train.config.leaves import CHANGEABLE, LEAVES
from train.config.loading import name_of
from train.grids import pool
from train.grids.declaration import Declaration
from train.grids.matching import Request
from train.grids.tuning import Tuning
from train.run.writers import write_json

FILE = "sweep.json"
ARGUMENT = "argument"  # of the config file, in place of a field
CLOSING = {"(": ")", "[": "]", "{": "}"}
# What the flags of a sweep decide, so that no field can.
DECIDED = {path: leaf.sweep for path, leaf in LEAVES.items() if leaf.sweep}
LONGEST = 200  # letters of a folder's name; file systems allow 255


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What was asked for; the grid is every combination of `over`.

    Attributes:
      config: The file, perhaps with an argument.
      overrides: Of all runs, from a leaf to the text of its value.
      over: From a leaf, or `argument`, to the texts of its values.
      seeds: Lists of seeds that are trained together in one run.
      equal: What is matched with the baseline, which has the first value of the first of `over`; '' is nothing.
      also: Settings beside the grid, each from a leaf or `argument` to the text of its value.
      tune: What every setting is tried with before; None is nothing.
      declaration: What was asked before anything was trained; None is nothing.
    """

    config: str
    overrides: Mapping[str, str]
    over: Mapping[str, Sequence[str]]
    seeds: Sequence[Sequence[int]]
    equal: str
    also: Sequence[Mapping[str, str]] = ()
    tune: Tuning | None = None
    declaration: Declaration | None = None

    @property
    def cells(self) -> dict[tuple[str, ...], Request]:
        """The grid, from a value of each of `over` to a config, and what is beside it."""
        grid = [dict(zip(self.over, values, strict=True)) for values in itertools.product(*self.over.values())]
        return {tuple(chosen.values()): self._request(chosen) for chosen in (*grid, *self.also)}

    @property
    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def baseline(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """The cell that one is matched with."""
        return (next(iter(self.over.values()))[0], *values[1:])

    def _request(self, values: Mapping[str, str]) -> Request:
        chosen = dict(values)
        names = [f"{field.rpartition('.')[2]}={pool.name_of(value)}" for field, value in chosen.items()]
        argument = chosen.pop(ARGUMENT, "")
        spec = f"{self.config}:{argument}" if argument else self.config
        return Request(_shortened(",".join(names)) or name_of(self.config), spec, {**self.overrides, **chosen})


def split(text: str) -> list[str]:
    """Values parted by commas that stand in no bracket and no quotes; quotes around a whole value are taken off.

    Raises:
      UsageError: a bracket or a quote that is not closed, or an empty value.
    """
    values, open_brackets, quote = [""], "", ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in CLOSING:
            open_brackets += CLOSING[character]
        elif open_brackets and character == open_brackets[-1]:
            open_brackets = open_brackets[:-1]
        elif character == "," and not open_brackets:
            values.append("")
            continue
        values[-1] += character
    if quote or open_brackets:
        raise UsageError(
            f"{text!r} has no closing {quote or open_brackets[-1]}; close it, or put quotes around the value."
        )
    values = [value.strip() for value in values]
    if "" in values:
        raise UsageError(f"{text!r} has an empty value; write '' for one that is meant, or take a comma away.")
    return [value[1:-1] if _is_quoted(value) else value for value in values]


def chosen_by(equal: str) -> list[str]:
    """The fields that matching chooses, so that nothing else can."""
    return [path for path, leaf in LEAVES.items() if equal and leaf.matched == equal]


def over(texts: Sequence[str], overrides: Mapping[str, str], equal: str) -> dict[str, list[str]]:
    """The fields that vary and their values, of `FIELD=VALUE,VALUE` each.

    Args:
      texts: What was given.
      overrides: Fields that were given one value.
      equal: What is to be matched.

    Raises:
      UsageError: no values, some given twice, or a field that something else decides.
    """
    found: dict[str, list[str]] = {}
    chosen = chosen_by(equal)
    for text in texts:
        field, equals, values = text.partition("=")
        if not equals:
            raise UsageError(f"--over {text} has no values; write --over {field or 'FIELD'}=VALUE,VALUE.")
        if field in DECIDED:
            raise UsageError(f"--over {field} cannot be: {DECIDED[field]} decides it.")
        if field in chosen:
            raise UsageError(f"--over {field} cannot be: --equal={equal} chooses it.")
        if field in found or field in overrides:
            raise UsageError(f"{field} is given twice; give it once, as --over or as --config.{field}.")
        found[field] = split(values)
        _check_apart(field, found[field])
    if equal and not found:
        raise UsageError(f"--equal={equal} needs an --over, whose first value is what the others are matched with.")
    return found


def also(texts: Sequence[str], grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """The settings beside the grid, of `FIELD=VALUE,FIELD=VALUE` each.

    Args:
      texts: What was given.
      grid: Fields that vary, with their values.

    Raises:
      UsageError: no value, a field that something else decides, or a setting that the grid has.
    """
    found: list[dict[str, str]] = []
    for text in texts:
        pairs = [pair.partition("=") for pair in split(text)]
        setting = {field: value for field, _, value in pairs}
        for field, equals, _ in pairs:
            if not equals:
                raise UsageError(f"--also {text} has no value of {field}; write --also {field}=VALUE,FIELD=VALUE.")
            if field in DECIDED:
                raise UsageError(f"--also {field} cannot be: {DECIDED[field]} decides it.")
        if setting in found or setting in [dict(zip(grid, v, strict=True)) for v in itertools.product(*grid.values())]:
            raise UsageError(f"--also {text} is a setting that the sweep has already; give every setting once.")
        found.append(setting)
    return found


def _check_apart(field: str, values: Sequence[str]) -> None:
    """Each value names a folder, in which not every letter can be."""
    for one, other in itertools.combinations(values, 2):
        if one == other:
            raise UsageError(f"--over {field} has {one!r} twice; give every value once.")
        if pool.name_of(one) == pool.name_of(other):
            raise UsageError(
                f"--over {field} has {one!r} and {other!r}, whose folders would both be called {pool.name_of(one)}; "
                "give them to two sweeps."
            )


def run_name(seeds: Sequence[int]) -> str:
    """Of the folder of a run, in that of its cell."""
    return f"seed{seeds[0]}" if len(seeds) == 1 else f"seeds{seeds[0]}-{seeds[-1]}"


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}-{zlib.crc32(name.encode()):08x}"


def _is_quoted(value: str) -> bool:
    return len(value) > 1 and value[0] in "'\"" and value.find(value[0], 1) == len(value) - 1


def read(directory: Path) -> dict[str, Any] | None:
    """The `sweep.json` of a folder; none where there is no folder or nothing in it.

    Raises:
      UsageError: it is something else's folder, or the file is damaged.
    """
    path = directory / FILE
    if path.is_file():
        try:
            found = {"also": [], "tune": None, "declaration": None} | json.loads(path.read_text(encoding="utf-8"))
            return {name: found[name] for name in ("cells", *(field.name for field in dataclasses.fields(Sweep)))}
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{path} is no record of a sweep ({error}); choose another --workdir.") from error
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"{directory} is not empty and holds no {FILE}; choose another --workdir.")
    return None


def write(directory: Path, record: Mapping[str, Any]) -> None:
    """Makes the folder and writes `sweep.json`; raises a UsageError where that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / FILE, record)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror}); choose another --workdir.") from error


def check_extends(before: Mapping[str, Any], now: Sweep, directory: Path) -> None:
    """Raises a UsageError where what a folder holds is no part of the sweep that is asked for now."""
    old = Sweep(**{field.name: before[field.name] for field in dataclasses.fields(Sweep)})
    plain = now.plain
    changed = [name for name in ("config", "equal", "tune", "declaration") if before[name] != plain[name]]
    overrides = {**old.overrides, **now.overrides}
    free = CHANGEABLE - {"train.length"}
    changed += [
        f"--config.{field}"
        for field in overrides
        if old.overrides.get(field) != now.overrides.get(field) and field not in free
    ]
    if list(old.over) != list(now.over):
        changed.append("--over")
    else:
        changed += [f"--over {field}" for field in old.over if not set(old.over[field]) <= set(now.over[field])]
    if not all(setting in now.also for setting in old.also):
        changed.append("--also")
    if old.equal and old.over and next(iter(old.over.values()))[0] != next(iter(now.over.values()))[0]:
        changed.append("its baseline, the first value of the first --over")
    if changed:
        raise UsageError(
            f"{directory} holds another sweep, which differs in {', '.join(dict.fromkeys(changed))}; "
            "add values and seeds to it, or choose another --workdir."
        )


def seeds(before: Sequence[Sequence[int]], first: int, count: int, together: bool, directory: Path) -> list[list[int]]:
    """The seeds of each run of a setting: those that there were, and the rest alone or all in one run.

    Args:
      before: Of the sweep that this one extends.
      first: The least seed.
      count: How many seeds there are to be.
      together: Whether new ones are trained in one run.
      directory: Of the sweep.

    Raises:
      UsageError: there were more or others.
    """
    known = [seed for together in before for seed in together]
    wanted = list(range(first, first + count))
    if known != wanted[: len(known)]:
        raise UsageError(
            f"{directory} holds a sweep of the seeds {known[0]} to {known[-1]}, which {wanted[0]} to {wanted[-1]} do "
            "not extend; give --seeds of at least as many, or choose another --workdir."
        )
    new = wanted[len(known) :]
    return [*map(list, before), *([new] if together and new else [[seed] for seed in new])]
