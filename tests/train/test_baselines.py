"""n-gram models against the definition, one token at a time."""

import collections
import math

import numpy as np
import pytest

from train.baselines import ngram_losses

TRAIN = np.frombuffer(b"the cat sat on the mat, the rat ate the cat", np.uint8)
TEST = np.frombuffer(b"the bat sat on the cat. zzz", np.uint8)


def by_hand(history, token, order, vocabulary=256):
    """p_k of the docstring, by recursion over the training text."""
    if order < 0:
        return 1 / vocabulary
    padded = [0] * order + TRAIN.tolist()
    follows = collections.Counter(
        padded[i + order] for i in range(len(TRAIN)) if padded[i : i + order] == history[len(history) - order :]
    )
    lower = by_hand(history, token, order - 1, vocabulary)
    if not follows:
        return lower
    return (follows[token] + len(follows) * lower) / (follows.total() + len(follows))


@pytest.mark.parametrize("context", [0, 1, 2, 5])
def test_losses_are_the_definitions(context):
    losses = ngram_losses(TRAIN, TEST, context, 256)
    history = [0] * context + TEST.tolist()
    expected = [-math.log(by_hand(history[i : i + context], int(t), context)) for i, t in enumerate(TEST)]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def test_probabilities_of_all_tokens_sum_to_one():
    """After every context, seen or not."""
    for before in (b"th", b"zz", b" c"):
        tests = [np.array([*before, token], np.uint8) for token in range(256)]
        assert sum(np.exp(-ngram_losses(TRAIN, test, 2, 256)[-1]) for test in tests) == pytest.approx(1)


def test_more_context_than_numbers_hold_is_refused():
    with pytest.raises(ValueError, match="do not fit 64 bits"):
        ngram_losses(TRAIN, TEST, 8, 256)
