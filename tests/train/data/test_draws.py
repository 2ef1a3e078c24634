"""Draws are those of a hash that is fixed for ever, and the same in Python, numpy and jax.numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from train.data import draws
from train.data.draws import Draws, permutation


def by_hand(*words):
    """Computes the two words of the hash of `train.data.draws` step by step."""
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
    return high, low


def test_values_stay_the_same_for_ever():
    draw = Draws(0, 7, 1, 2**32 - 1)
    assert [draw.bits() for _ in range(3)] == [by_hand(0, 7, 1, 2**32 - 1, number)[1] for number in range(3)]
    assert Draws(0, 0, 0, 0).bits() == by_hand(0, 0, 0, 0, 0)[1] == 3893219074


def test_a_permutation_sorts_numbers_by_their_hashes():
    for length in (0, 1, 1000):
        order = sorted(range(length), key=lambda number: by_hand(draws.ORDER, 5, 2, number)[::-1])
        assert permutation(length, draws.ORDER, 5, 2).tolist() == order


def test_python_numpy_and_jax_draw_alike():
    def drawn(seed, high, low):
        draw = Draws(draws.EXAMPLE, seed, high, low)
        return draw.bits(), draw.integer(9), draw.chance(0.3), draw.uniform(), draw.bits()

    seed, positions = 2**32 - 1, [0, 1, 2**31, 2**32 - 1, 2**32, 2**45 + 3]
    alone = [drawn(seed, *draws.words(position)) for position in positions]
    together = drawn(seed, *draws.words(np.array(positions)))
    traced = jax.jit(jax.vmap(drawn, (None, 0, 0)))(jnp.uint32(seed), *draws.words(np.array(positions)))
    for of_python, of_numpy, of_jax in zip(zip(*alone, strict=True), together, traced, strict=True):
        np.testing.assert_array_equal(of_python, of_numpy)
        np.testing.assert_array_equal(of_numpy, of_jax)


def test_many_draws_are_those_one_by_one():
    one, many = Draws(4, 2), Draws(4, 2)
    expected = [one.bits() for _ in range(12)]
    assert [*many.bits(5).tolist(), *many.bits(7).tolist()] == expected


def test_other_draws_are_made_of_their_bits():
    bits = [Draws(1, word).bits() for word in range(1000)]
    shares = [(word >> 8) / 2**24 for word in bits]
    assert [Draws(1, word).integer(9) for word in range(1000)] == [word % 9 for word in bits]
    assert [Draws(1, word).uniform(-3, 5) for word in range(1000)] == [-3 + 8 * share for share in shares]
    for p in (0.0, shares[0], 1.0):
        assert [Draws(1, word).chance(p) for word in range(1000)] == [share < p for share in shares]
