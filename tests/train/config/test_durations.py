"""Durations have a number and a unit."""

import pytest

from attention import UsageError
from train.config.durations import Duration


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("20steps", 20),
        (" 1 step ", 1),
        ("5000 examples", 50),
        ("90 epochs", 900),
        ("0.5 epochs", 5),
        ("10 examples", 1),
        ("0 steps", 0),
        ("149 examples", 1),
        ("151 examples", 2),
    ],
)
def test_steps_of_a_hundred_examples_in_epochs_of_a_thousand(text, steps):
    assert Duration.parse(text, "x").steps(batch_size=100, examples_per_epoch=1000) == steps


@pytest.mark.parametrize("text", ["20", "steps", "-3 steps", "3 hours", "", "1e3 steps", "3 steps 2 epochs"])
def test_refuses_in_one_sentence(text):
    with pytest.raises(UsageError, match=r"train.length=.* is not a duration: write a number and its unit") as raised:
        Duration.parse(text, "train.length")
    assert repr(text) in str(raised.value)
