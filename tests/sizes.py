"""The sizes of tests: `make test` touches everything once, except what takes whole runs or whole pages.

`make test-more` has these and what varies the others, `make test-long` the long forms.

A test without a mark is in `make test`; `pytest.mark.more` and `pytest.mark.long` move it. `long` wins.
"""

from collections.abc import Iterable
from typing import Any

import pytest


def more(*values: Any) -> Any:
    """Parameters of a case that is left to `make test-more`."""
    return pytest.param(*values, marks=pytest.mark.more)


def once(cases: Iterable[Any], kept: Iterable[Any]) -> list[Any]:
    """Leaves all cases that are not among the kept to `make test-more`."""
    cases, kept = list(cases), list(kept)
    if missing := [case for case in kept if case not in cases]:
        raise ValueError(f"{missing} are none of the cases {cases}.")
    return [case if case in kept else more(*(case if isinstance(case, tuple) else (case,))) for case in cases]
