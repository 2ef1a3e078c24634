"""Durations have a number and a unit."""

import pytest

from attention import UsageError
from train.config.durations import Duration


@pytest.mark.parametrize(
    ("text", "steps"),
    [(" 1 step ", 1), ("0 steps", 0), ("0.5 epochs", 5), ("10 examples", 1), ("149 examples", 1), ("151 examples", 2)],
)
def test_steps_of_a_hundred_examples_in_epochs_of_a_thousand(text, steps):
    assert Duration.parse(text, "x").steps(batch_size=100, examples_per_epoch=1000) == steps


@pytest.mark.parametrize("text", ["20", "-3 steps", "3 hours", "3 steps 2 epochs"])
def test_refuses_in_one_sentence(text):
    with pytest.raises(UsageError, match=f"train.length='{text}' is not a duration: write a number and its unit"):
        Duration.parse(text, "train.length")
