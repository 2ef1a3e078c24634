"""Which values are tried, which is chosen, and what is refused before."""

import argparse
import dataclasses

import pytest

from attention import UsageError
from train.grids import tuning
from train.grids.matching import Request
from train.grids.tuning import Tuning

REQUEST = Request("a", "configs/vit_digits.py", {"train.length": "60 epochs"})
RATE = "optimizer.learning_rate"


def read(field, values, length="1/3", seeds=1, beyond=2, request=REQUEST):
    options = {"tune_length": length, "tune_seeds": seeds, "tune_beyond": str(beyond), "tune_apart": False}
    return tuning.read(argparse.Namespace(tune=f"{field}=", **options), values, request, ("model.width",))


def rates(beyond=2):
    return read(RATE, ("1e-4", "1e-3", "1e-2"), beyond=beyond)


def scored(*scores):
    return {value: [score] for value, score in zip(("1e-4", "1e-3", "1e-2"), scores, strict=True)}


def test_the_task_says_what_is_best():
    assert (rates().metric, rates().highest) == ("accuracy", True)
    text = read(RATE, ("1e-4", "1e-3"), "1", 2, request=Request("", "configs/gpt_pydoc.py", {}))
    assert (text.metric, text.highest, text.seeds) == ("loss", False, 2)


def test_the_best_mean_is_chosen_and_a_loss_that_is_not_finite_never():
    scores = {"1e-4": [0.5, 0.7], "1e-3": [0.9, 0.4], "1e-2": [1.0, None]}
    assert rates().best(scores) == "1e-3"
    lowest = Tuning(RATE, ("1e-4", "1e-3"), "1/3", 2, "loss", False)
    assert lowest.best(scores) == "1e-4"
    tuning.check_finite("a", scores)
    with pytest.raises(UsageError, match="a cannot be trained with any of 1e-4, 1e-3: the loss was not finite"):
        tuning.check_finite("a", {"1e-4": [None], "1e-3": [None]})


def test_a_choice_at_an_end_adds_a_value_there_for_all_settings_up_to_a_number():
    inner, upper = scored(0.1, 0.3, 0.2), scored(0.1, 0.2, 0.3)
    assert rates().grid({"a": inner, "b": {}}) == ["1e-4", "1e-3", "1e-2"]
    assert rates().grid({"a": inner, "b": inner}) == ["1e-4", "1e-3", "1e-2"]
    assert rates().grid({"a": inner, "b": upper}) == ["1e-4", "1e-3", "1e-2", "0.1"]
    lower = scored(0.3, 0.2, 0.1)
    assert rates().grid({"a": lower, "b": upper}) == ["1e-05", "1e-4", "1e-3", "1e-2", "0.1"]
    assert rates().grid({"a": upper | {"0.1": [0.4], "1": [0.5]}})[3:] == ["0.1", "1"]  # two at most
    assert rates(0).grid({"a": upper}) == ["1e-4", "1e-3", "1e-2"]
    assert "at an end" not in rates(0).rule
    assert rates(1).rule.endswith("for all settings, 1 at most.")


def test_a_trial_is_the_run_of_its_value_and_seed_only_where_it_is_as_long_and_nothing_is_there(tmp_path):
    whole, chosen = dataclasses.replace(rates(0), length="2/2"), {"a": {RATE: "1e-3"}}
    ((trial, flags),) = whole.trials([REQUEST], {}, 3, tmp_path)["a", "1e-3"].items()
    assert "--config.train.length=60 epochs" in flags
    run = tmp_path / "a/seed3"
    whole.reuse(chosen, [run])
    assert not run.exists()  # the trial has not finished
    trial.mkdir(parents=True)
    (trial / "result.json").write_text("{}")
    rates().reuse(chosen, [run])
    assert not run.exists()  # shorter trials are no runs
    whole.reuse(chosen, [run, tmp_path / "a/seed4"])
    assert (run / "result.json").read_text() == "{}"
    assert not (tmp_path / "a/seed4").exists()
    (run / "result.json").write_text("kept")
    whole.reuse(chosen, [run])
    assert (run / "result.json").read_text() == "kept"


@pytest.mark.parametrize(
    ("field", "values", "length", "message"),
    [
        ("model.depth", ("2",), "1/3", "--tune=model.depth must be at least two rising numbers above 0, .* is '2'"),
        ("model.width", ("8", "16"), "1/3", "another flag decides model.width"),
        ("train.length", ("8", "16"), "1/3", "another flag decides train.length"),
        ("model.depth", ("1", "2"), "3/2", "--tune-length must be a fraction above 0 and up to 1"),
    ],
)
def test_mistakes_are_one_sentence(field, values, length, message):
    with pytest.raises(UsageError, match=message):
        read(field, values, length)
