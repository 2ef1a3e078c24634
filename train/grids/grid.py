"""The grid of a sweep: its configs, their names, and whether it extends an earlier sweep."""

import contextlib
import dataclasses
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired, Required, TypedDict

from attention import specs
from attention.errors import UsageError
from attention.types import Reader, Rule, Seed, Valid, fits
from models.files import read_json
from train import cli
from train.cli.files import is_occupied, write_json, writing
from train.grids import pool
from train.grids.declaration import Declaration
from train.grids.matching import Request
from train.grids.tuning import BEYOND, Tuning
from train.loading import literal, name_of
from train.loading.leaves import CHANGEABLE, LEAVES

FILE = "sweep.json"
ARGUMENT = "argument"  # the name, among fields, of the config file's argument
CLOSING = {"(": ")", "[": "]", "{": "}"}
QUOTES = ("'", '"')
LONGEST = 200  # characters in a folder's name; file systems allow 255
_PIECE = re.compile(r"""'[^']*'|"[^"]*"|.""", re.DOTALL)  # a quoted text, or a character

Value = str | int | float
Decimal = Annotated[str, Rule("a number", lambda text: math.isfinite(float(text)))]


class _Cell(TypedDict):
    chosen: dict[str, Value]
    tried: NotRequired[dict[Decimal, list[int | float | None]]]


class _Tuning(TypedDict):
    field: str
    length: str
    seeds: int
    metric: str
    rule: str


class _Record(TypedDict, total=False):  # the entries of `sweep.json` that are read
    config: str
    overrides: dict[str, Value]
    over: Required[dict[str, list[Value]]]
    seeds: list[list[Seed]]
    equal: str
    also: list[dict[str, Value]]
    cells: dict[str, _Cell]
    tune: _Tuning | None


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The request for a sweep. Its grid is every combination of the values in `over`."""

    config: str  # the file, with or without an argument
    overrides: Mapping[str, str]  # shared by all runs, from a leaf to the text of its value
    over: Mapping[str, Sequence[str]]  # from a leaf, or `argument`, to the texts of its values
    seeds: Sequence[Sequence[int]]  # the seeds of each run, which trains them together
    equal: str  # what is matched with the baseline, which has the first value of the first of `over`; '' is nothing
    also: Sequence[Mapping[str, str]] = ()  # settings beside the grid, each from a leaf to the text of its value
    tune: Tuning | None = None  # what is tuned before the runs
    declaration: Declaration | None = None  # what was declared before anything was trained

    @property
    def cells(self) -> dict[tuple[str, ...], Request]:
        """The cells by their values: those of the grid, then those beside it."""
        settings = (*combinations(self.over), *self.also)
        return {tuple(chosen.values()): self._request(chosen) for chosen in settings}

    @property
    def plain(self) -> dict[str, Any]:
        """The sweep as JSON holds it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def baseline(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Finds the cell that a cell is matched with."""
        return (next(iter(self.over.values()))[0], *values[1:])

    def _request(self, values: Mapping[str, str]) -> Request:
        chosen = dict(values)
        names = [f"{field.rpartition('.')[2]}={pool.name_of(value)}" for field, value in chosen.items()]
        argument = chosen.pop(ARGUMENT, "")
        spec = f"{self.config}:{argument}" if argument else self.config
        name = ",".join(names) or name_of(self.config)
        if len(name) > LONGEST:
            name = f"{name[:LONGEST]}-{zlib.crc32(name.encode()):08x}"
        return Request(name, spec, {**self.overrides, **chosen})


def split(text: str) -> list[str]:
    """Splits a text at commas outside brackets and quotes, and removes quotes around whole values."""
    if len(text) > specs.LENGTH:
        raise UsageError(
            f"{text!r} has {len(text)} characters, and at most {specs.LENGTH} are read; give fewer values."
        )
    values, awaited = [""], ""  # `awaited` holds the closing brackets that are to come
    for piece in _PIECE.findall(text):
        if piece in CLOSING:
            awaited += CLOSING[piece]
        elif awaited.endswith(piece):
            awaited = awaited[:-1]
        elif piece in QUOTES:
            awaited = piece
            break
        if piece == "," and not awaited:
            values.append("")
        else:
            values[-1] += piece
    if awaited:
        raise UsageError(f"{text!r} has no closing {awaited[-1]}; close it, or put quotes around the value.")
    values = [value.strip() for value in values]
    if "" in values:
        raise UsageError(f"{text!r} has an empty value; write '' for one that is meant, or remove a comma.")
    return [value[1:-1] if _PIECE.fullmatch(value) and value[0] in QUOTES else value for value in values]


def decided(equal: str) -> dict[str, str]:
    """Lists the fields that cannot vary, each with the flag that decides it."""
    by_matching = {path: f"--equal={equal}" for path, leaf in LEAVES.items() if equal and leaf.matched == equal}
    return {path: leaf.sweep for path, leaf in LEAVES.items() if leaf.sweep} | by_matching


def _check_undecided(flag: str, field: str, equal: str = "") -> None:
    if by := decided(equal).get(field):
        raise UsageError(f"{flag} {field} cannot be: {by} decides it.")


def over(texts: Sequence[str], overrides: Mapping[str, str], equal: str) -> dict[str, list[str]]:
    """Reads which fields vary, and their values, from --over flags of the form `FIELD=VALUE,VALUE`."""
    fields: dict[str, list[str]] = {}
    for text in texts:
        field, _, values = text.partition("=")
        if not values:
            raise UsageError(f"--over {text} has no values; write --over {field or 'FIELD'}=VALUE,VALUE.")
        _check_undecided("--over", field, equal)
        if field in fields or field in overrides:
            raise UsageError(f"{field} is given twice; give it once, as --over or as --config.{field}.")
        fields[field] = split(values)
        _check_apart(field, fields[field])
    if (count := math.prod(map(len, fields.values()))) > cli.MOST:
        raise UsageError(f"These --over make {count} settings, and at most {cli.MOST} are made; give fewer values.")
    if equal and not fields:
        raise UsageError(f"--equal={equal} needs an --over, whose first value is what the others are matched with.")
    return fields


def also(texts: Sequence[str], grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Reads the settings beside the grid, from --also flags of the form `FIELD=VALUE,FIELD=VALUE`."""
    beside: list[dict[str, str]] = []
    for text in texts:
        pairs = [pair.partition("=") for pair in split(text)]
        setting = {field: value for field, _, value in pairs}
        for field, equals, _ in pairs:
            if not equals:
                raise UsageError(f"--also {text} has no value of {field}; write --also {field}=VALUE,FIELD=VALUE.")
            _check_undecided("--also", field)
        if _meant(setting) in map(_meant, (*combinations(grid), *beside)):
            raise UsageError(f"--also {text} is a setting that the sweep has already; give every setting once.")
        beside.append(setting)
    return beside


def combinations(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Lists the settings of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _check_apart(field: str, values: Sequence[str]) -> None:
    """Raises a UsageError where two values are equal or, since names lack some characters, share a folder."""
    known = [(value, _meant({field: value}), pool.name_of(value)) for value in values]
    for (left, meant, name), (right, also_meant, other) in itertools.combinations(known, 2):
        both = f"--over {field} has {left!r} and {right!r}"
        if meant == also_meant:
            raise UsageError(f"{both}, which are equal; give every value once.")
        if name == other:
            raise UsageError(f"{both}, whose folders would both be called {name}; give them to two sweeps.")


def _meant(setting: Mapping[str, str]) -> dict[str, Any]:
    """Reads the texts of values, so that texts with the same meaning become equal."""
    return {field: _value(field, text) for field, text in setting.items()}


def _value(field: str, text: str) -> Any:
    valid = LEAVES[field].valid if field in LEAVES else Valid(str)
    if valid.kind is not str:
        return literal(text)
    with contextlib.suppress(UsageError):  # the config will say what is wrong
        read = [rule.value(text, "") for rule in valid.each(Reader)]
        return next(filter(None, read), None) or specs.pattern(text)
    return text


def run_name(seeds: Sequence[int]) -> str:
    """Names a run's folder within its cell's folder."""
    return f"seed{seeds[0]}" if len(seeds) == 1 else f"seeds{seeds[0]}-{seeds[-1]}"


def read(directory: Path) -> dict[str, Any] | None:
    """Reads a folder's `sweep.json`; returns None where the folder is missing or empty."""
    path = directory / FILE
    if path.is_file():
        record = {"also": [], "tune": None, "declaration": None} | read_json(path)
        names = ("cells", *(field.name for field in dataclasses.fields(Sweep)))
        if not is_record(record, names):
            raise UsageError(f"{path} is no record of a sweep; choose another --workdir.")
        record["tune"] = record["tune"] and {"beyond": BEYOND, "apart": False} | record["tune"]
        return {name: record[name] for name in names}
    if is_occupied(directory):
        raise UsageError(f"{directory} is not empty and holds no {FILE}; choose another --workdir.")
    return None


def is_record(value: Any, names: Sequence[str] = ("over",)) -> bool:
    """Tells whether a value is the content of a `sweep.json` and has these entries."""
    return fits(_Record, value) and value.keys() >= {*names, *(["cells"] if value.get("tune") else [])}


def write(directory: Path, record: Mapping[str, Any]) -> None:
    """Makes the folder and writes its `sweep.json`; raises a UsageError where that is impossible."""
    with writing(str(directory)):
        directory.mkdir(parents=True, exist_ok=True)
        write_json(directory / FILE, record)


def check_extends(before: Mapping[str, Any], now: Sweep, directory: Path) -> None:
    """Raises a UsageError unless the new sweep extends the one in the folder."""
    plain, overrides, over = now.plain, before["overrides"], before["over"]
    changed = [name for name in ("config", "equal", "tune", "declaration") if before[name] != plain[name]]
    fixed = {**overrides, **now.overrides}.keys() - (CHANGEABLE - {"train.length"})
    changed += [f"--config.{field}" for field in sorted(fixed) if overrides.get(field) != now.overrides.get(field)]
    if list(over) != list(now.over):
        changed.append("--over")
    else:
        changed += [f"--over {field}" for field in over if not set(over[field]) <= set(now.over[field])]
    if not all(setting in now.also for setting in before["also"]):
        changed.append("--also")
    if before["equal"] and over and next(iter(over.values()))[0] != next(iter(now.over.values()))[0]:
        changed.append("its baseline, the first value of the first --over")
    if changed:
        raise UsageError(
            f"{directory} holds another sweep, which differs in {', '.join(dict.fromkeys(changed))}; "
            "add values and seeds to it, or choose another --workdir."
        )


def seeds(before: Sequence[Sequence[int]], first: int, count: int, directory: Path) -> list[list[int]]:
    """Assigns seeds to a setting's runs: known runs keep theirs, and each new seed gets a run of its own."""
    known = [seed for together in before for seed in together]
    asked = list(range(first, first + count))
    if known != asked[: len(known)]:
        raise UsageError(
            f"{directory} holds a sweep of the seeds {known[0]} to {known[-1]}, which {asked[0]} to {asked[-1]} do "
            "not extend; give --seeds of at least as many, or choose another --workdir."
        )
    return [*map(list, before), *([seed] for seed in asked[len(known) :])]
