"""Verdicts follow from intervals by rule, hold for a family together, and name what the design could have found."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis import verdicts
from analysis.runs import Found, Group, Run
from train.grids.declaration import Comparison, Declaration

SPREAD = np.array([-0.001, 0.0005, 0.001, -0.0005, 0.0])  # over five seeds, of mean 0


def found(metric="accuracy", **cells):
    """Makes runs with these values for their seeds, by setting."""
    all_runs = [
        Run(Path(name, f"seed{seed}"), seed, {}, {"best": {"test": {metric: value}}}, [], 1)
        for name, values in cells.items()
        for seed, value in enumerate(values)
    ]
    return Found((Group("all", {}, tuple(all_runs)),), ())


def test_of_a_loss_the_lower_is_better():
    for gain, words in ((-0.01, "holds"), (0.01, "does not hold")):
        results = found("loss", a=0.5 + gain + SPREAD, b=0.5 + 0 * SPREAD)
        declared = Declaration("?", "loss", 0.002, [Comparison("a", ["a"], ["b"], "better")])
        assert verdicts.judge(results, declared)[0].words == words


@pytest.mark.parametrize("claim", ["better", "equal"])
def test_the_rules_are_those_of_intervals(claim):
    """A claim beyond the margin needs a 95 % interval; equality a 90 % interval, as two one-sided tests do."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        values = rng.normal(rng.choice([0.0, 0.004, -0.004]), 0.002, 5)
        declared = Declaration("?", "accuracy", 0.003, [Comparison("a", ["a"], ["b"], claim)])
        words = verdicts.judge(found(a=values, b=0 * values), declared)[0].words
        test = stats.ttest_1samp(values, 0.0)
        (low, high), narrow = test.confidence_interval(0.95), test.confidence_interval(0.90)
        equal = narrow.low > -0.003 and narrow.high < 0.003
        beyond = low > 0.003 if claim == "better" else False
        against = high < 0.003 if claim == "better" else low > 0.003 or high < -0.003
        expected = "holds" if beyond else "equal" if equal else "does not hold" if against else "undecided"
        assert words.startswith(expected)
        seen.add(expected)
    assert {"equal", "does not hold", "undecided"} <= seen


@pytest.mark.parametrize(
    ("claim", "effect", "limit"), [("no worse", 0.0, -0.003), ("as much", 0.008, 0.005), ("as much", 0.004, 0.003)]
)
def test_a_claim_of_one_side_has_one_limit(claim, effect, limit):
    """Only one end of the 95 % interval counts; `as much` also needs a gain beyond the margin."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        values = rng.normal(limit + rng.choice([0.0, 0.004, -0.004]), 0.002, 5)
        declared = Declaration("?", "accuracy", 0.003, [Comparison("a", ["a"], ["b"], claim, effect)])
        words = verdicts.judge(found(a=values, b=0 * values), declared)[0].words
        low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert words == ("holds" if low > limit else "does not hold" if high < limit else "undecided")
        seen.add(words)
    assert seen == {"holds", "does not hold", "undecided"}


@pytest.mark.parametrize("cells", [{"a": [0.9], "b": [0.8]}, {"a": [0.9, 0.9], "b": [0.8, 0.8]}, {"a": [0.9, 0.8]}])
def test_what_has_no_spread_is_not_tested(cells):
    declared = Declaration("?", "accuracy", 0.002, [Comparison("a", ["a"], ["b"], "better")])
    (verdict,) = verdicts.judge(found(**cells), declared)
    assert verdict.words == "not tested"


def test_the_smallest_effect_is_cohens():
    """34 paired differences find half a standard deviation in 80 % of cases, and 15 find 0.8; fewer do not."""
    for count, effect, enough in ((34, 0.5, True), (33, 0.5, False), (15, 0.8, True), (14, 0.8, False)):
        values = np.linspace(-1, 1, count)
        assert (verdicts.detectable(values / values.std(ddof=1)) <= effect) == enough
