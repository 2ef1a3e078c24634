"""Every example once, near its like, and a function of seed and epoch."""

import numpy as np
import pytest

from attention import UsageError
from train.data.pairs.batches import NOTHING, Buckets, parse_bounds

LENGTHS = np.random.default_rng(0).integers(1, 33, 203)
BUCKETS = Buckets(LENGTHS, (8, 16, 32), 10)


def test_an_epoch_has_every_example_at_most_once_and_leaves_out_less_than_a_batch():
    examples = BUCKETS.train(0, 0).examples
    assert len(np.unique(examples)) == examples.size == 200 == BUCKETS.batches_per_epoch * 10


def test_what_an_epoch_leaves_out_is_of_the_longest():
    left_out = np.setdiff1d(np.arange(203), BUCKETS.train(0, 0).examples)
    assert np.all(LENGTHS[left_out] > 16)


def test_examples_fit_their_batch_and_only_leftovers_are_shorter_than_they_need():
    for batches in (BUCKETS.train(3, 1), BUCKETS.evaluation()):
        bounds = np.array(BUCKETS.bounds)[batches.bucket]
        real = batches.examples != NOTHING
        assert np.all(LENGTHS[batches.examples][real] <= np.repeat(bounds[:, None], 10, axis=1)[real])
        smaller = np.concatenate([[0], BUCKETS.bounds])[batches.bucket]
        promoted = (LENGTHS[batches.examples] <= smaller[:, None]) & real
        assert promoted.sum() < 10 * (len(BUCKETS.bounds) - 1)


def test_epochs_and_seeds_differ_and_repeat():
    orders = [BUCKETS.train(seed, epoch).examples.tolist() for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert orders[0] == orders[3]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_batches_of_all_lengths_are_mixed():
    bucket = BUCKETS.train(0, 0).bucket
    assert 0 < np.count_nonzero(np.diff(bucket)) > 3


def test_evaluation_has_every_example_once():
    examples = BUCKETS.evaluation().examples
    assert sorted(examples[examples != NOTHING]) == list(range(203))
    assert examples.shape[1] == 10


def test_the_order_is_the_same_for_ever():
    examples = Buckets(np.array([1, 9, 2, 9, 3, 9]), (4, 9), 2).train(0, 0).examples
    assert examples.tolist() == [[4, 0], [2, 1], [3, 5]]


def test_bounds():
    assert parse_bounds("", 20) == (20,)
    assert parse_bounds("5,10", 20) == (5, 10, 20)


@pytest.mark.parametrize("text", ["10,5", "5,5", "0", "20", "a", "5;10", "5,"])
def test_bounds_that_are_none(text):
    with pytest.raises(UsageError, match="rising lengths between 1 and 19"):
        parse_bounds(text, 20)
