"""Verdicts follow from intervals by rule, hold for a family together, and name what the design could have found."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from analysis import runs, verdicts
from analysis.comparison import report
from analysis.runs import Found, Group, Run
from train.grids import grid
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


def judged(gain, claim="better", effect=0.0, metric="accuracy", margin=0.002):
    """Judges a comparison whose differences are the gain plus the spread of the seeds."""
    results = found(metric, a=0.5 + gain + SPREAD, b=0.5 + 0 * SPREAD)
    declared = Declaration("?", metric, margin, [Comparison("a", ["a"], ["b"], claim, effect)])
    return verdicts.judge(results, declared)[0].words


@pytest.mark.parametrize(
    ("gain", "claim", "effect", "words"),
    [
        (0.010, "better", 0.0, "holds"),
        (-0.010, "better", 0.0, "does not hold"),
        (0.000, "better", 0.0, "equal within 0.20 points"),
        (0.002, "better", 0.0, "undecided"),
        (0.0025, "better", 0.005, "does not hold"),
        (-0.010, "worse", 0.0, "holds"),
        (0.010, "worse", 0.0, "does not hold"),
        (0.000, "equal", 0.0, "equal within 0.20 points"),
        (0.010, "equal", 0.0, "does not hold"),
        (-0.010, "equal", 0.0, "does not hold"),
        (0.002, "equal", 0.0, "undecided"),
        (0.010, "no worse", 0.0, "holds"),
        (0.000, "no worse", 0.0, "holds"),
        (-0.002, "no worse", 0.0, "undecided"),
        (-0.010, "no worse", 0.0, "does not hold"),
        (0.010, "as much", 0.005, "holds"),
        (0.0045, "as much", 0.005, "holds"),
        (0.003, "as much", 0.005, "undecided"),
        (-0.010, "as much", 0.005, "does not hold"),
        (0.0015, "as much", 0.003, "undecided"),
        (0.010, "", 0.0, "better"),
        (-0.010, "", 0.0, "worse"),
    ],
)
def test_words_follow_from_the_interval(gain, claim, effect, words):
    assert judged(gain, claim, effect) == words


def test_of_a_loss_the_lower_is_better():
    assert judged(-0.01, metric="loss") == "holds"
    assert judged(0.01, metric="loss") == "does not hold"


@pytest.mark.parametrize(
    ("claim", "effect", "limit"),
    [
        ("better", 0.0, 0.003),
        ("equal", 0.0, -0.003),
        ("no worse", 0.0, -0.003),
        ("as much", 0.008, 0.005),
        ("as much", 0.004, 0.003),
    ],
)
def test_the_rules_are_those_of_intervals(claim, effect, limit):
    """A claim beyond its limit needs a 95 % interval; equality a 90 % interval, as two one-sided tests do.

    Of `no worse` and `as much` only one end of the interval counts; `as much` also needs a gain beyond the margin.
    """
    rng, seen, two_sided = np.random.default_rng(0), set(), claim in ("better", "equal")
    for _ in range(60):
        values = rng.normal(limit + rng.choice([0.0, 0.004, -0.004, 0.009]), 0.002, 5)
        declared = Declaration("?", "accuracy", 0.003, [Comparison("a", ["a"], ["b"], claim, effect)])
        words = verdicts.judge(found(a=values, b=0 * values), declared)[0].words
        test = stats.ttest_1samp(values, 0.0)
        (low, high), narrow = test.confidence_interval(0.95), test.confidence_interval(0.90)
        equal = two_sided and narrow.low > -0.003 and narrow.high < 0.003
        beyond = claim != "equal" and low > limit
        against = high < limit or (claim == "equal" and low > 0.003)
        expected = "holds" if beyond else "equal" if equal else "does not hold" if against else "undecided"
        assert words.startswith(expected)
        seen.add(expected)
    assert seen == {"does not hold", "undecided", *["equal"] * two_sided, *["holds"] * (claim != "equal")}


@pytest.mark.more
def test_a_claim_at_the_margin_holds_as_rarely_as_the_level_says():
    rng = np.random.default_rng(1)
    declared = Declaration("?", "accuracy", 0.01, [Comparison("a", ["a"], ["b"], "better")])
    results = (found(a=rng.normal(0.01, 0.005, 5), b=np.zeros(5)) for _ in range(400))
    held = sum(verdicts.judge(run, declared)[0].words == "holds" for run in results)
    assert held <= stats.binom.ppf(0.999, 400, 0.025)


def test_a_family_is_corrected_together():
    """A comparison with a p near 0.03 is decided alone, but not beside a second one."""
    gain = 0.002 + stats.t.isf(0.015, 4) * stats.sem(SPREAD)
    assert judged(gain) == "holds"
    results = found(a=gain + SPREAD, b=0 * SPREAD)
    family = [Comparison(name, ["a"], ["b"], "better") for name in ("one", "two")]
    assert [v.words for v in verdicts.judge(results, Declaration("?", "accuracy", 0.002, family))] == ["undecided"] * 2


def test_a_main_effect_is_the_mean_over_blocks():
    """Opposite noise in two blocks cancels in their main effect."""
    noise = 10 * SPREAD
    results = found(a4=0.51 + noise + SPREAD, b4=0.5 + 0 * noise, a8=0.51 - noise, b8=0.5 + 0 * noise)
    family = [Comparison("over heads", ["a4", "a8"], ["b4", "b8"], "better"), Comparison("at 4", ["a4"], ["b4"])]
    over, alone = verdicts.judge(results, Declaration("?", "accuracy", 0.002, family))
    assert (over.words, alone.words) == ("holds", "undecided")
    np.testing.assert_allclose(over.differences, 0.01 + SPREAD / 2)


@pytest.mark.parametrize(
    "cells", [{"a": [0.9], "b": [0.8]}, {"a": [0.9, 0.9], "b": [0.8, 0.8]}, {"a": [], "b": [0.8]}, {"a": [0.9, 0.8]}]
)
def test_what_has_no_spread_is_not_tested(cells):
    declared = Declaration("?", "accuracy", 0.002, [Comparison("a", ["a"], ["b"], "better")])
    (verdict,) = verdicts.judge(found(**cells), declared)
    assert verdict.words == "not tested"
    assert np.isnan(verdict.detects)


@pytest.mark.parametrize(("pairs", "effect"), [(34, 0.5), (15, 0.8)])
def test_the_smallest_effect_is_cohens(pairs, effect):
    """34 paired differences find half a standard deviation in 80 % of cases, and 15 find 0.8; fewer do not."""
    for count, enough in ((pairs, True), (pairs - 1, False)):
        values = np.linspace(-1, 1, count)
        assert (verdicts.detectable(values / values.std(ddof=1)) <= effect) == enough


def test_a_report_has_the_verdicts_of_what_was_declared(tmp_path, write_runs):
    cells = {"dot_product": 0.9 + 0 * SPREAD, "super": 0.95 + SPREAD}
    write_runs(tmp_path, {f"attention={a}": ({"model__attention": a}, cells[a].tolist()) for a in cells})
    comparison = {"name": "super", "settings": ["attention=super"], "baselines": ["attention=dot_product"]}
    family = [comparison | {"claim": "better", "effect": 0.01}]
    declared = {"question": "Is it?", "metric": "accuracy", "margin": 0.002, "family": family}
    grid.write(tmp_path, {"over": {"model.attention": ["dot_product", "super"]}, "declaration": declared})
    made = report(runs.find([tmp_path]))
    made.write(tmp_path / "out")
    assert "| super | better by 1.00 points | 5 | +5.00 ± 0.10 | +50.46 | holds | 0.13 |" in made.markdown()
    assert made.verdict[0] == "Declared: super (better by 1.00 points): holds (+5.00 ± 0.10, 5 seeds)."
    lines = (tmp_path / "out/declared.csv").read_text().splitlines()
    assert lines[0] == "comparison,claim,seeds,difference,difference_plus_minus,effect size,verdict,finds"
    assert ",holds,0.0013" in lines[1]


def test_to_be_ahead_at_every_evaluation_no_amount_is_claimed():
    """Gains of 0.01 are undecided by their spread, although they are far from the amount claimed of the end."""
    curves = []
    for name, gains in (("a", (0.0, 0.01, 0.02)), ("b", (0.0, 0.0, 0.0))):
        for seed, gain in enumerate(gains):
            record = [{"step": step, "seconds": 0.0, "split": "validation", "accuracy": 0.5 + gain} for step in (1, 2)]
            curves.append(Run(Path(name) / f"seed{seed}", seed, {}, {}, record, 1))
    claimed = Comparison("a lead", ("a",), ("b",), "better", 0.5)
    trained = Found((Group("", {}, tuple(curves)),), ())
    assert verdicts.judge_curve(trained, Declaration("?", "accuracy", 0.001, (claimed,)), claimed) == "undecided"
