"""The list of mutants fits the product as it is; `python -m tests.mutants` plants them."""

import re

import pytest

from tests.conftest import ROOT
from tests.mutants import Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_planted_and_its_tests_run(mutant: Mutant):
    text = (ROOT / mutant.file).read_text()
    assert compile(mutant.planted(text), mutant.file, "exec") != compile(text, mutant.file, "exec")
    for file, *names in (test.partition("[")[0].split("::") for test in mutant.tests):
        assert all(re.search(rf"(class|def) {name}\b", (ROOT / file).read_text()) for name in names)
