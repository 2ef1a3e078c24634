"""n-gram models against the definition, one token at a time."""

import collections
import math

import numpy as np
import pytest

from train.tasks import ngrams
from train.tasks.ngrams import ngram_losses

TRAIN = np.frombuffer(b"the cat sat on the mat, the rat ate the cat", np.uint8)
TEST = np.frombuffer(b"the bat sat on the cat. zzz", np.uint8)


def grams(order):
    """All sequences of order + 1 training tokens, with ids 0 before the first."""
    padded = [0] * order + TRAIN.tolist()
    return [tuple(padded[i : i + order + 1]) for i in range(len(TRAIN))]


def by_hand(history, token, order, context, vocabulary=256):
    """p_k as the docstring defines it, by recursion."""
    if order < 0:
        return 1 / vocabulary
    counted = grams(order) if order == context else [gram[1:] for gram in set(grams(order + 1))]
    counts = collections.Counter(counted)
    ones, twos = (sum(count == n for count in counts.values()) for n in (1, 2))
    discount = (ones + 1) / (ones + 2 * twos + 2)
    before = tuple(history[len(history) - order :])
    follows = {gram[-1]: count for gram, count in counts.items() if gram[:-1] == before}
    lower = by_hand(history, token, order - 1, context, vocabulary)
    if not follows:
        return lower
    kept = max(follows.get(token, 0) - discount, 0)
    return (kept + discount * len(follows) * lower) / sum(follows.values())


@pytest.mark.parametrize("context", [0, 2])
def test_losses_are_the_definitions(context):
    losses = ngram_losses(TRAIN, TEST, context, 256)
    history = [0] * context + TEST.tolist()
    expected = [-math.log(by_hand(history[i : i + context], int(t), context, context)) for i, t in enumerate(TEST)]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)


def test_the_first_tokens_alone_are_counted(monkeypatch):
    monkeypatch.setattr(ngrams, "COUNTED", 20)
    np.testing.assert_array_equal(ngram_losses(TRAIN, TEST, 1, 256), ngram_losses(TRAIN[:20], TEST, 1, 256))


def test_more_context_than_numbers_hold_is_refused():
    with pytest.raises(ValueError, match="do not fit 64 bits"):
        ngram_losses(TRAIN, TEST, 8, 256)
