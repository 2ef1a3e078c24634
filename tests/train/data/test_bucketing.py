"""Every example once, near its like, and a function of seed and epoch."""

import numpy as np
import pytest

from attention import UsageError
from train.data import draws
from train.data.pairs import NOTHING, bucketed, parse_bounds

LENGTHS = np.random.default_rng(0).integers(1, 33, 203)
BOUNDS = (8, 16, 32)


def of_epoch(epoch=0):
    """The batches of an epoch of training, and the bound of each."""
    return bucketed(LENGTHS, BOUNDS, 10, draws.permutation(203, epoch))


def of_evaluation():
    return bucketed(LENGTHS, BOUNDS, 10, np.arange(203), fill=True)


def test_an_epoch_has_every_example_at_most_once_and_leaves_out_fewer_of_the_longest_than_a_batch():
    examples, _ = of_epoch()
    assert len(np.unique(examples)) == examples.size == 200
    assert np.all(LENGTHS[np.setdiff1d(np.arange(203), examples)] > 16)


def test_examples_fit_their_batch_and_only_leftovers_are_shorter_than_they_need():
    for examples, bounds in (of_epoch(), of_evaluation()):
        real = examples != NOTHING
        assert np.all((LENGTHS[examples] <= bounds[:, None])[real])
        smaller = np.select([bounds == 16, bounds == 32], [8, 16], 0)
        promoted = (LENGTHS[examples] <= smaller[:, None]) & real
        assert promoted.sum() < 10 * (len(BOUNDS) - 1)


def test_evaluation_has_every_example_once():
    examples, _ = of_evaluation()
    assert sorted(examples[examples != NOTHING]) == list(range(203))
    assert examples.shape[1] == 10


def test_by_hand():
    """The third short one has no partner, and joins the long ones."""
    examples, bounds = bucketed(np.array([1, 9, 2, 9, 3, 9]), (4, 9), 2, np.array([5, 4, 3, 2, 1, 0]))
    assert (examples.tolist(), bounds.tolist()) == ([[4, 2], [0, 5], [3, 1]], [4, 9, 9])


def test_bounds():
    assert parse_bounds("", 20, "data.buckets") == (20,)
    assert parse_bounds("5,10", 20, "data.buckets") == (5, 10, 20)


@pytest.mark.parametrize("text", ["10,5", "5,5", "0", "20", "a", "5;10", "5,"])
def test_bounds_that_are_none(text):
    with pytest.raises(UsageError, match="rising lengths between 1 and 19"):
        parse_bounds(text, 20, "data.buckets")
