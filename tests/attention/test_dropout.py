"""The counter hash as a random number generator, and dropout's equation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from attention.dropout import dropout, keep, seed_of

SHAPE = (8, 4, 256, 256)


@pytest.fixture(scope="module")
def kept():
    return np.asarray(keep(seed_of(jax.random.key(0)), 0.1, SHAPE))


@pytest.mark.parametrize("rate", [0.01, 0.5, 0.9])
def test_rate_is_exact_within_chance(rate):
    kept = np.asarray(keep(seed_of(jax.random.key(1)), rate, (64, 64, 64)))
    assert stats.binomtest(int(kept.sum()), kept.size, 1 - rate).pvalue > 1e-4


@pytest.mark.parametrize("axis", range(4))
@pytest.mark.parametrize("lag", [1, 2, 3])
def test_neighbours_along_every_axis_are_independent(kept, axis, lag):
    here, there = (np.moveaxis(kept, axis, 0)[s].ravel() for s in (slice(None, -lag), slice(lag, None)))
    both = np.sum(~here & ~there)
    assert stats.binomtest(int(both), here.size, 0.01).pvalue > 1e-4


def test_rows_and_keys_are_independent(kept):
    for seed in (1, 2):
        other = np.asarray(keep(seed_of(jax.random.key(seed)), 0.1, SHAPE))
        assert stats.binomtest(int(np.sum(~kept & ~other)), kept.size, 0.01).pvalue > 1e-4
    by_row = (~kept).sum(-1).ravel()
    assert (
        stats.kstest(stats.zscore(by_row + np.random.default_rng(0).uniform(-0.5, 0.5, by_row.size)), "norm").statistic
        < 0.02
    )


def test_dropout_is_zero_or_scaled_and_its_gradient_too():
    x = jax.random.normal(jax.random.key(0), (4, 5, 6))
    seed = seed_of(jax.random.key(1))
    expected = jnp.where(keep(seed, 0.25, x.shape), x / 0.75, 0.0)
    chex.assert_trees_all_close(dropout(x, 0.25, seed), expected)
    gradient = jax.grad(lambda x: jnp.sum(dropout(x, 0.25, seed)))(x)
    chex.assert_trees_all_close(gradient, jnp.where(keep(seed, 0.25, x.shape), 1 / 0.75, 0.0))
    chex.assert_trees_all_equal(dropout(x, 0.0, seed), x)
