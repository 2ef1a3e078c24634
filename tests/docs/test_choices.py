"""The answers to which attention somebody needs are those of the table."""

import pytest

from docs import choices
from tests.analysis import tried


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    monkeypatch.setattr(choices, "kept", tried.table)


def test_a_need_names_who_can_and_who_cannot_and_counts_the_others():
    recall, parity = [line for line in choices.needs().splitlines() if "`stacked`" in line or "`parity`" in line]
    assert recall.endswith("| `dot_product` | `retention` | `delta`, `linear` |")
    assert parity.endswith("| – | `dot_product`, `linear` | `delta` |")


def test_a_cache_has_one_size_where_more_pairs_take_no_more_bytes():
    lines = choices.states().splitlines()
    assert lines[0] == "| mechanism | cache, KiB | recall as in training, % | recall of 128 pairs, % |"
    assert lines[2:] == [
        "| `delta` | 4 | 100 (100 – 100) | 70 (69 – 72) |",
        "| `linear` | 4 | 100 (100 – 100) | 50 (49 – 52) |",
        "| `retention` | 4 | 100 (100 – 100) | 17 (6 – 27) |",
    ]


def test_numbers_are_means_in_per_cent():
    numbers = dict(choices.numbers())
    assert numbers["trial stacked linear 128"] == "50"
    assert numbers["trial stacked linear"] == "100"
    assert numbers["trials tried"] == "5"
    assert numbers["trials all three"] == "3"  # of the two that this table has
