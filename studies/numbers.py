"""Reads numbers that benchmarks measured, and computes those that papers print."""

import ast
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import read_json
from studies import runs

RESULTS = Path("benchmarks/results")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
RANGE = (("median", "least", "greatest"), ("seconds", "least", "greatest"))  # names of a value and its ends


def rounds(ratio: Mapping[str, Any]) -> tuple[float, float, float]:
    """Reads a ratio's median and the least and greatest of its rounds; all are equal for planned values, as bytes are.

    The ends of a ratio of two times are bounds: the least time over the other's greatest, and the reverse.
    """
    data = _results(ratio["file"])
    value, least, greatest = _range(_at(data, ratio["at"]))
    below, lowest, highest = _range(_at(data, ratio["over"])) if "over" in ratio else (1, 1, 1)
    return value / below, least / highest, greatest / lowest


def command(ratio: Mapping[str, Any]) -> str:
    """Reads the command that measured a ratio."""
    data = _results(ratio["file"])
    made = data["calls"][_at(data, ratio["at"])["call"]] if "calls" in data else data
    return made["command"] if made["command"].startswith("python") else f"python -m {made['command']}"


def comes_to(text: str, printed: str) -> bool:
    """Tells whether a sum equals its printed value to the last digit, in per cent if that has %, or is above 0."""
    return value_of(text) > 0 if printed == "> 0" else come_to(text, printed) == printed


def value_of(text: str) -> float:
    """Computes a sum such as `(98.62 - 98.12) / 98.12`."""
    return _value(ast.parse(text, mode="eval").body)


def come_to(text: str, printed: str) -> str:
    """Writes a sum with the digits of its printed value, in per cent if that is; `> 0` takes three digits."""
    if printed == "> 0":
        return f"{value_of(text):.3g}"
    percent = printed.endswith("%")
    digits = len(re.sub(r"[ %]", "", printed).partition(".")[2])
    return f"{value_of(text) * (100 if percent else 1):.{digits}f}" + " %" * percent


def _results(file: str) -> Any:
    return read_json(runs.ROOT / RESULTS / f"{file}.json")


def _range(value: Any) -> tuple[float, float, float]:
    if not isinstance(value, Mapping):
        return value, value, value
    median, least, greatest = next(names for names in RANGE if names[0] in value)
    return value[median], value[least], value[greatest]


def _at(data: Any, path: Sequence[Any]) -> Any:
    """Looks up a place in nested data; each step is a key, or a mapping that one row of a list must contain."""
    for part in path:
        if isinstance(part, str):
            data = data[part]
        else:
            (data,) = [row for row in data if part.items() <= row.items()]
    return data


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant):
        return node.value
    return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
