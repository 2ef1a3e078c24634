"""The sizes of tests: `make test` touches everything once, except what takes whole runs or whole pages.

`make test-more` has these and what varies the others, `make test-long` the long forms.

A test without a mark is in `make test`; `pytest.mark.more` and `pytest.mark.long` move it. `long` wins.
"""

import itertools
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import Any

import pytest

SIZES = ("test", "more", "long")


def more(*values: Any) -> Any:
    """Parameters of a case that is left to `make test-more`."""
    return pytest.param(*values, marks=pytest.mark.more)


def once(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Leaves all cases that are not among the kept to `make test-more`."""
    cases, kept = list(cases), list(kept)
    if missing := [case for case in kept if case not in cases]:
        raise ValueError(f"{missing} are none of the cases {cases}.")
    return [case if case in kept else more(*(case if isinstance(case, tuple) else (case,))) for case in cases]


def sizes_of(test: FunctionType, module: Mapping[str, Any]) -> list[str]:
    """Finds the sizes in which cases of a test run, the smallest first; of its module `pytestmark` counts."""
    common = module.get("pytestmark", [])
    marks = [*getattr(test, "pytestmark", []), *(common if isinstance(common, list) else [common])]
    ranks = {_rank(marks)}
    for mark in marks:
        if mark.name == "parametrize":
            of_cases = {_rank(getattr(case, "marks", ())) for case in mark.args[1]}
            ranks = {max(pair) for pair in itertools.product(ranks, of_cases)}
    return [SIZES[rank] for rank in sorted(ranks)]


def _rank(marks: Iterable[Any]) -> int:
    return max((SIZES.index(mark.name) for mark in marks if mark.name in SIZES), default=0)
