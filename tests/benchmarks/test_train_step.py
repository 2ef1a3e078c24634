"""The comparison of training steps: where the models of other libraries are."""

import importlib.util
import re

import pytest

from benchmarks import train_step

EXAMPLES = re.findall(r"--config=configs/(\w+?)_\w+\.py .*--against=(\S+)", train_step.__doc__)


def test_both_examples_name_other_stacks():
    assert {model for model, _ in EXAMPLES} == set(train_step.INPUTS)


@pytest.mark.parametrize(("model", "others"), EXAMPLES)
def test_the_twins_of_its_examples_are_found(model, others):
    for name in others.split(","):
        assert importlib.util.find_spec(train_step.peer_of(model, name)), name
