"""Statistics against SciPy's own, closed forms, and what they promise: few false claims, and power."""

import itertools

import numpy as np
import pytest
from scipy import special, stats

from analysis import statistics
from analysis.statistics import LEVEL, holm, paired, summary, unpaired

SWEEPS = 2000
A, B = np.random.default_rng(0).normal(size=(2, 6, 5)) * [[[1.0]], [[2.0]]] + [[[0.3]], [[0.0]]]


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def test_a_summary_is_scipys():
    found = summary(A)
    np.testing.assert_allclose(found.mean, A.mean(-1))
    interval = stats.t.interval(1 - LEVEL, 4, loc=A.mean(-1), scale=stats.sem(A, axis=-1))
    np.testing.assert_allclose((found.mean - found.half_width, found.mean + found.half_width), interval)


def test_paired_is_scipys_and_unpaired_is_welchs(rng):
    others = rng.normal(0.0, 2.0, (6, 3))
    welch = stats.ttest_ind(A, others, axis=-1, equal_var=False)
    for found, theirs in ((paired(A, B), stats.ttest_rel(A, B, axis=-1)), (unpaired(A, others), welch)):
        interval = theirs.confidence_interval(1 - LEVEL)
        np.testing.assert_allclose(found.p, theirs.pvalue)
        np.testing.assert_allclose((found.mean - found.half_width, found.mean + found.half_width), interval)


def test_effects_have_no_bias(rng):
    """By definition, Hedges' d has E[d] = δ, for paired and unpaired seeds."""
    baseline, change = rng.normal(0, 3, (200_000, 5)), rng.normal(0.8, 1, (200_000, 5))
    effects = paired(baseline + change, baseline).effect
    assert abs(effects.mean() - 0.8) < 5 * effects.std() / len(effects) ** 0.5
    effects = unpaired(change, rng.normal(0, 1, (200_000, 4))).effect
    assert abs(effects.mean() - 0.8) < 5 * effects.std() / len(effects) ** 0.5


def test_hedges_factor():
    assert np.isclose(statistics.hedges(4), special.gamma(2) / (2**0.5 * special.gamma(1.5)))
    assert np.isclose(statistics.hedges(60), 1 - 3 / (4 * 60 - 1), atol=1e-5)  # Hedges' own approximation
    assert np.isnan(statistics.hedges(1))


def test_holm_is_its_closed_test(rng):
    """Holm's method is the closure of Bonferroni's: a comparison's p is the greatest of all sets that contain it."""
    for p in rng.uniform(0, 0.2, (50, 4)):
        subsets = [list(s) for r in range(1, 5) for s in itertools.combinations(range(4), r)]
        bonferroni = {tuple(s): min(1.0, len(s) * p[s].min()) for s in subsets}
        closed = [max(value for subset, value in bonferroni.items() if i in subset) for i in range(4)]
        np.testing.assert_allclose(holm(p), closed)


def test_holm_leaves_out_what_was_not_tested():
    p = np.array([0.01, np.nan, 0.04])
    np.testing.assert_allclose(holm(p)[[0, 2]], holm(p[[0, 2]]))
    assert np.isnan(holm(p)[1])


def test_equal_differences_prove_nothing():
    """Rounding gives them a spread of 1e-17 and a p-value of 1e-15."""
    baseline = np.array([0.1, 0.2, 0.3])
    assert np.std(baseline + 0.7 - baseline) > 0
    assert np.isnan(paired(baseline + 0.7, baseline).p)
    assert np.isnan(unpaired(np.full(3, 0.5), np.full(3, 0.4)).p)


def test_one_seed_says_nothing():
    one = np.array([0.5])
    for found in (paired(one, one + 1), unpaired(one, one + 1), unpaired(one, np.array([0.1, 0.2, 0.4]))):
        assert np.isnan([found.p, found.half_width, found.effect]).all()
    assert np.isnan(summary(one).half_width)


@pytest.mark.parametrize("pairs", [4, 5, 6, 8])
def test_wilcoxon_and_what_it_can_reach(pairs):
    baseline = np.arange(pairs) / 7
    better = baseline + np.arange(1, pairs + 1)
    assert np.isclose(statistics.wilcoxon(better, baseline), statistics.least_wilcoxon(pairs))
    assert (statistics.least_wilcoxon(pairs) <= LEVEL) == (pairs >= 6)
    mixed = better * np.where(np.arange(pairs) % 3, 1, -1)
    assert np.isclose(statistics.wilcoxon(mixed, baseline), stats.wilcoxon(mixed, baseline).pvalue)


def claims(values, baseline):
    """Tells whether each sweep claims any difference from the baseline, for arrays (sweeps, mechanisms, 5)."""
    return np.any(holm(paired(values, np.broadcast_to(baseline, values.shape)).p) <= LEVEL, axis=-1)


@pytest.mark.parametrize("kind", ["normal", "counts", "unpaired"])
def test_sweeps_without_a_difference_claim_few(rng, kind):
    """2,000 sweeps of 3 mechanisms and a baseline with 5 seeds make no more false claims than the level allows."""
    seeds = rng.normal(0, 1, (SWEEPS, 1, 5))  # a good seed is good for all
    if kind == "counts":  # correct answers of 360, as on the digits
        correct = rng.binomial(360, special.expit(3 + 0.3 * seeds), (SWEEPS, 4, 5)) / 360
        false = claims(correct[:, 1:], correct[:, :1])
    elif kind == "normal":
        values = seeds + rng.normal(0, 0.5, (SWEEPS, 4, 5))
        false = claims(values[:, 1:], values[:, :1])
    else:
        values, others = rng.normal(0, 1, (SWEEPS, 3, 5)), rng.normal(0, 1, (SWEEPS, 1, 4))
        false = np.any(holm(unpaired(values, np.broadcast_to(others, (SWEEPS, 3, 4))).p) <= LEVEL, axis=-1)
    assert 0 < false.sum() <= stats.binom.ppf(0.999, SWEEPS, LEVEL)


@pytest.mark.parametrize(("effect", "stated"), [(0.5, None), (1.0, 0.40), (2.0, 0.91)])  # in docs/comparing.md
def test_power_on_a_known_difference_is_the_noncentral_ts(rng, effect, stated):
    baseline = rng.normal(0, 3, (SWEEPS, 5))
    found = paired(baseline + rng.normal(effect, 1, (SWEEPS, 5)), baseline)
    critical, centre = stats.t.ppf(1 - LEVEL / 2, 4), effect * 5**0.5
    power = stats.nct.sf(critical, 4, centre) + stats.nct.cdf(-critical, 4, centre)
    assert stated in (None, round(power, 2))
    low, high = stats.binom.ppf([0.0005, 0.9995], SWEEPS, power)
    assert low <= (found.p <= LEVEL).sum() <= high
