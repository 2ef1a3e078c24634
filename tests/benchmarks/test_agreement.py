"""What the page of agreement is made of: all forms of a mechanism agree with its definition, and a wrong one shows."""

import numpy as np
import pytest

from benchmarks.device import right
from benchmarks.peers import agreement
from models.mechanisms import MECHANISMS
from tests.sizes import once


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(agreement, "LENGTH", 9)


@pytest.mark.parametrize("spec", once(["gated_delta", "forgetting", "luong_dot"], ["gated_delta"]))
def test_all_forms_agree_with_the_definition(spec, monkeypatch):
    monkeypatch.setattr(agreement, "NEEDED", {"no_such_package": ""})
    row = agreement.of_forms(agreement.check_of(spec, "float32"))
    assert {"reference", "xla", "chunked", "steps"} <= row.keys()
    assert not any(agreement.is_apart(row, form, "float32") for form in row)


def test_a_form_that_is_a_thousandth_off_is_bold():
    check = agreement.check_of("luong_dot", "float32")
    wanted = agreement.definition(check, right.arguments(check))
    row = {"xla": agreement.apart(check, wanted, wanted)}
    row["chunked"] = agreement.apart(check, {name: 1.001 * x for name, x in wanted.items()}, wanted)
    assert row["xla"] == {"output": 0, "gradients": 0}
    assert row["chunked"]["output"] == pytest.approx(0.001)
    row["steps"] = agreement.apart(check, {name: np.nan * x for name, x in wanted.items()}, wanted)
    shown = agreement.table({"luong_dot": {"float32": row}}, "float32")
    assert shown.splitlines()[-1] == "| `luong_dot` | 0e+00 / 0e+00 | **1e-3 / 1e-3** | **nan / nan** |"


def test_every_core_of_a_mechanism_has_a_row():
    assert {right.mechanism_of(spec).score for spec in agreement.ROWS} >= {row.score for row in MECHANISMS.values()}


def test_mechanisms_are_named_or_the_flag_is_left_out(refused):
    assert "--only needs a value" in refused(agreement.main, ["--only"])
