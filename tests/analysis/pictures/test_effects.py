"""A picture of declared comparisons has their intervals, margin and claims where they are."""

import numpy as np
import pytest
from scipy import stats

from analysis.pictures import effects
from analysis.verdicts import Verdict
from train.grids.declaration import Comparison, Declaration

VALUES = np.array([0.01, 0.02, 0.06])


def drawn(metric, claim, name="super"):
    comparison = Comparison(name, ["a"], ["b"], claim, 0.05)
    declared = Declaration("?", metric, 0.005, [comparison])
    return effects.figure([Verdict(comparison, "holds", VALUES, 0.02)], declared).axes[0]


def test_marks_are_at_the_seeds_their_mean_and_the_ends_of_its_interval():
    axes = drawn("accuracy", "better")
    bar, mean, seeds, claimed = (line.get_xdata() for line in axes.lines[1:])
    np.testing.assert_allclose(bar, stats.t.interval(0.95, 2, 3.0, stats.sem(100 * VALUES)))
    np.testing.assert_allclose(mean, [3.0])
    np.testing.assert_allclose(seeds, 100 * VALUES)
    np.testing.assert_allclose(claimed, [5.0])
    assert axes.patches[0].get_x() == pytest.approx(-0.5)
    assert axes.get_yticklabels()[0].get_text() == "super\nholds"


@pytest.mark.parametrize(
    ("metric", "claim", "place"), [("accuracy", "worse", -5), ("loss", "better", -0.05), ("loss", "worse", 0.05)]
)
def test_what_is_claimed_is_on_its_side(metric, claim, place):
    assert drawn(metric, claim).lines[-1].get_xdata() == [pytest.approx(place)]
