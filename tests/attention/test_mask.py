"""Masks against the sentence that defines each of them, pair by pair."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError


def allowed(mask, queries, keys, batch=2):
    array = mask.materialise(queries, keys, rank=4)
    return np.broadcast_to(np.asarray(array), (batch, 1, queries, keys))[:, 0]


@pytest.mark.parametrize(("causal", "window", "offset"), [(True, 0, 0), (False, 3, 3), (True, 2, 3)])
def test_causal_and_window_count_from_the_offset(causal, window, offset):
    array = allowed(Mask(causal=causal, window=window, query_offset=offset), 5, 8)
    for i, j in itertools.product(range(5), range(8)):
        position = i + offset
        expected = (not causal or j <= position) and (not window or abs(position - j) < window)
        assert array[0, i, j] == expected


def test_every_part_must_permit():
    mask = Mask(
        causal=True,
        key_lengths=jnp.array([3, 5]),
        query_segments=jnp.array([[0, 0, 1, 1, 1]] * 2),
        key_segments=jnp.array([[0, 0, 1, 1, 1]] * 2),
        dense=jnp.ones((1, 1, 1, 5), bool).at[..., 2].set(False),
    )
    array = allowed(mask, 5, 5)
    segments = [0, 0, 1, 1, 1]
    for b, i, j in itertools.product(range(2), range(5), range(5)):
        assert array[b, i, j] == (j <= i and j < (3, 5)[b] and segments[i] == segments[j] and j != 2)


def test_reachable_keys_are_those_of_some_query():
    np.testing.assert_array_equal(Mask(causal=True).reachable_keys(2, 4, 4)[0], [True, True, False, False])
    assert Mask(causal=True, query_offset=2).reachable_keys(2, 4, 4) is None
    np.testing.assert_array_equal(Mask(causal=True, query_offset=-1).reachable_keys(4, 4, 4)[0], [True] * 3 + [False])
    np.testing.assert_array_equal(
        Mask(key_lengths=jnp.array([1, 3])).reachable_keys(2, 4, 4),
        [[True, False, False, False], [True, True, True, False]],
    )


@pytest.mark.parametrize(("options", "message"), [({"window": -1}, "negative"), ({"key_segments": 0}, "together")])
@pytest.mark.usefixtures("unchecked_shapes")
def test_mistakes(options, message):
    with pytest.raises(UsageError, match=message):
        Mask(**options)
