"""Draws are uniform, independent of their neighbours, and the same in Python, numpy and jax.numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from train.data import draws
from train.data.draws import Draws, permutation

MANY = np.arange(2**16, dtype=np.uint32)
# Words that change by one, of which the others stay: a position's, a seed's, and the number of the draw.
NEIGHBOURS = {
    "positions": lambda: Draws(0, 3, 0, MANY).bits(),
    "high words": lambda: Draws(0, 3, MANY, 5).bits(),
    "seeds": lambda: Draws(0, MANY, 0, 5).bits(),
    "draws": lambda: Draws(0, 3, 0, 5).bits(len(MANY)),
    "far positions": lambda: Draws(0, 2**32 - 1, 2**20, MANY << np.uint32(16)).bits(),
}
# Bounds that a right hash passes but once in ten thousand times; the values are fixed, so it passes them always.
RARE = 1e-4


def by_hand(*words):
    """Computes the hash of `train.data.draws` step by step."""
    high, low = 0x243F6A88, 0x13198A2E
    for word in words:
        high = (high + word) % 2**32
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            high = (high ^ (high >> shift)) * factor % 2**32
        high ^= high >> 15
        low ^= high
        for shift, factor in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
            low = (low ^ (low >> shift)) * factor % 2**32
        low ^= low >> 15
    return low


def test_values_stay_the_same_for_ever():
    draw = Draws(0, 7, 1, 2**32 - 1)
    assert [draw.bits() for _ in range(3)] == [by_hand(0, 7, 1, 2**32 - 1, number) for number in range(3)]
    assert Draws(0, 0, 0, 0).bits() == by_hand(0, 0, 0, 0, 0) == 3893219074


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_python_numpy_and_jax_draw_alike(seed):
    def drawn(seed, high, low):
        draw = Draws(draws.EXAMPLE, seed, high, low)
        return draw.bits(), draw.integer(9), draw.chance(0.3), draw.uniform(), draw.bits()

    positions = [0, 1, 2**31, 2**32 - 1, 2**32, 2**45 + 3]
    alone = [drawn(seed, *draws.words(position)) for position in positions]
    together = drawn(seed, *draws.words(np.array(positions)))
    traced = jax.jit(jax.vmap(drawn, (None, 0, 0)))(jnp.uint32(seed), *draws.words(np.array(positions)))
    for of_python, of_numpy, of_jax in zip(zip(*alone, strict=True), together, traced, strict=True):
        np.testing.assert_array_equal(of_python, of_numpy)
        np.testing.assert_array_equal(of_numpy, of_jax)


@pytest.mark.parametrize("method", ["bits", "fine"])
def test_many_draws_are_those_one_by_one(method):
    one, many = Draws(4, 2), Draws(4, 2)
    expected = [getattr(one, method)() for _ in range(12)]
    assert [*getattr(many, method)(5).tolist(), *getattr(many, method)(7).tolist()] == expected


@pytest.mark.parametrize("words", NEIGHBOURS)
class TestNeighbours:
    def test_bytes_and_pairs_of_them_are_uniform(self, words):
        drawn = NEIGHBOURS[words]()
        for shift in range(0, 32, 8):
            part = (drawn >> np.uint32(shift)) & 255
            assert stats.chisquare(np.bincount(part, minlength=256)).pvalue > RARE
            pairs = (part[:-1] // 16) * 16 + part[1:] // 16
            assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > RARE

    def test_bits_are_uncorrelated(self, words):
        """Neither with each other nor with the bits of the next draw."""
        drawn = NEIGHBOURS[words]()
        signs = 2.0 * ((drawn[:, None] >> np.arange(32, dtype=np.uint32)) & 1) - 1
        within, between = signs.T @ signs / len(signs), signs[:-1].T @ signs[1:] / len(signs)
        bound = stats.norm.isf(RARE / (2 * 32 * 32)) / len(signs) ** 0.5
        assert np.abs(within - np.eye(32)).max() < bound
        assert np.abs(between).max() < bound


def test_each_bit_of_a_position_turns_half_of_the_bits_drawn():
    at = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    for bit in range(32):
        turned = Draws(0, 3, 0, at).bits() ^ Draws(0, 3, 0, at ^ np.uint32(1 << bit)).bits()
        shares = [((turned >> np.uint32(place)) & 1).mean() for place in range(32)]
        np.testing.assert_allclose(shares, 0.5, atol=5 * 0.5 / 20_000**0.5)


class TestDistributions:
    def test_uniform(self):
        drawn = Draws(1, MANY).uniform()
        assert drawn.dtype == np.float32
        assert 0 <= drawn.min() < drawn.max() < 1
        assert stats.kstest(drawn, "uniform").pvalue > RARE
        scaled = [Draws(1, word).uniform(-3, 5) for word in range(1000)]
        assert -3 <= min(scaled) < -2.9
        assert 4.9 < max(scaled) < 5

    @pytest.mark.parametrize("bound", [2, 9, 1000])
    def test_integers(self, bound):
        drawn = Draws(2, MANY).integer(bound)
        assert drawn.dtype == np.int32
        assert stats.chisquare(np.bincount(drawn, minlength=bound)).pvalue > RARE

    @pytest.mark.parametrize(("p", "share"), [(0.0, 0), (1.0, 1), (0.3, 0.3)])
    def test_chance(self, p, share):
        np.testing.assert_allclose(Draws(3, MANY).chance(p).mean(), share, atol=0.007 if 0 < p < 1 else 0)

    def test_generators_differ_from_position_to_position(self):
        assert len({Draws(4, position).generator().beta(0.4, 0.4) for position in range(50)}) == 50
        assert Draws(4, 1).generator().beta(0.4, 0.4) == Draws(4, 1).generator().beta(0.4, 0.4)


class TestPermutation:
    def test_all_orders_are_equally_frequent(self):
        orders = [tuple(permutation(4, draws.ORDER, 5, epoch)) for epoch in range(4800)]
        counts = {order: orders.count(order) for order in set(orders)}
        assert len(counts) == 24
        assert stats.chisquare(list(counts.values())).pvalue > RARE

    def test_epochs_and_seeds_are_independent(self):
        orders = [permutation(1000, draws.ORDER, seed, epoch) for seed in range(4) for epoch in range(4)]
        correlations = np.corrcoef(orders)[np.triu_indices(16, 1)]
        assert np.abs(correlations).max() < stats.norm.isf(RARE / 240) / 1000**0.5

    def test_it_has_each_number_once(self):
        for length in (0, 1, 2, 1000):
            assert sorted(permutation(length, 1, 2)) == list(range(length))
