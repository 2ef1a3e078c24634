"""What needs no network: n-gram models of tokens, to judge a language model by."""

import numpy as np
from jaxtyping import Float, Integer

COUNTED = 20_000_000  # training tokens that are counted; more take gigabytes and change the second digit


def ngram_losses(
    train: Integer[np.ndarray, "S"], test: Integer[np.ndarray, "T"], context: int, vocabulary: int
) -> Float[np.ndarray, "T"]:
    """−log p of each test token given the `context` tokens before it, counted in `train`, in nats.

    Interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1998, §2.7):

        p_k(w | h) = (max(c(h w) − d, 0) + d t(h) p_{k-1}(w | h')) / c(h)

    with t(h) how many different tokens follow h, h' the context h without its first token, and p_{-1} uniform; p_k is
    p_{k-1} where h was never seen. c counts at the highest k, and below it says before how many different tokens h w
    stands. The discount d = (n_1 + 1) / (n_1 + 2 n_2 + 2), from how many c are 1 and 2, is theirs but for what keeps
    it between 0 and 1. The first tokens of a text have ids 0 before them. A context of 0 is the unigram.

    Args:
      train: Ids to count: the first `COUNTED` of them.
      test: Ids to predict.
      context: How many tokens before it a token is predicted from; vocabulary^(context + 1) must fit 64 bits.
      vocabulary: Ids are below it.
    """
    if vocabulary ** (context + 1) >= 2**64:
        raise ValueError(f"{context + 1} tokens of {vocabulary} do not fit 64 bits.")
    train = train[:COUNTED]
    probability = np.full(len(test), 1 / vocabulary)
    for order in range(context + 1):
        grams, count = _counts(train, order, context, vocabulary)
        discount = (np.sum(count == 1) + 1) / (np.sum(count == 1) + 2 * np.sum(count == 2) + 2)
        contexts, place = np.unique(grams // np.uint64(vocabulary), return_inverse=True)
        total, types = np.bincount(place, count), np.bincount(place)
        wanted = _codes(test, order, vocabulary)
        seen, before = _look_up(grams, count, wanted), wanted // np.uint64(vocabulary)
        follow, differ = _look_up(contexts, total, before), _look_up(contexts, types, before)
        mixed = (np.maximum(seen - discount, 0) + discount * differ * probability) / np.maximum(follow, 1)
        probability = np.where(follow > 0, mixed, probability)
    return -np.log(probability)


def _counts(train: np.ndarray, order: int, context: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """The different sequences of order + 1 tokens, sorted, and c of each."""
    if order == context:
        return np.unique(_codes(train, order, vocabulary), return_counts=True)
    longer = np.unique(_codes(train, order + 1, vocabulary))
    return np.unique(longer % np.uint64(vocabulary ** (order + 1)), return_counts=True)


def _codes(ids: Integer[np.ndarray, "T"], order: int, vocabulary: int) -> Integer[np.ndarray, "T"]:
    """Each token with the `order` tokens before it as one number."""
    padded = np.concatenate([np.zeros(order, np.uint64), ids.astype(np.uint64)])
    code = np.zeros(len(ids), np.uint64)
    for first in range(order + 1):
        code = code * np.uint64(vocabulary) + padded[first : first + len(ids)]
    return code


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where `keys`, which are sorted, have it not."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
