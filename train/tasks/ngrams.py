"""N-gram models of tokens, the baselines of a language model."""

import numpy as np
from jaxtyping import Float, Integer

COUNTED = 20_000_000  # training tokens counted; more take gigabytes and change only the second digit


def ngram_losses(
    train: Integer[np.ndarray, "S"], test: Integer[np.ndarray, "T"], context: int, vocabulary: int
) -> Float[np.ndarray, "T"]:
    """Computes −log p, in nats, of each test token given the `context` tokens before it, with counts from `train`.

    Interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1998, §2.7):

        p_k(w | h) = (max(c(h w) − d, 0) + d t(h) p_{k-1}(w | h')) / c(h)

    Here t(h) counts the different tokens that follow h, h' is h without its first token, and p_{-1} is uniform. Where h
    was never seen, p_k is p_{k-1}. At the highest k, c(h w) counts occurrences; below, it counts the different tokens
    that stand before h w. The discount is d = (n_1 + 1) / (n_1 + 2 n_2 + 2), where n_1 and n_2 count the c that are 1
    and 2; the added constants keep it between 0 and 1. A text begins as if ids 0 stood before it. A context of 0 is the
    unigram. vocabulary^(context + 1) must fit 64 bits, and at most `COUNTED` ids are counted.
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
        codes = _codes(test, order, vocabulary)
        seen, before = _look_up(grams, count, codes), codes // np.uint64(vocabulary)
        follow, differ = _look_up(contexts, total, before), _look_up(contexts, types, before)
        mixed = (np.maximum(seen - discount, 0) + discount * differ * probability) / np.maximum(follow, 1)
        probability = np.where(follow > 0, mixed, probability)
    return -np.log(probability)


def _counts(train: np.ndarray, order: int, context: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    """Lists the different sequences of order + 1 tokens, sorted, and the count c of each."""
    if order == context:
        return np.unique(_codes(train, order, vocabulary), return_counts=True)
    longer = np.unique(_codes(train, order + 1, vocabulary))
    return np.unique(longer % np.uint64(vocabulary ** (order + 1)), return_counts=True)


def _codes(ids: Integer[np.ndarray, "T"], order: int, vocabulary: int) -> Integer[np.ndarray, "T"]:
    """Encodes each token and the `order` tokens before it as one number."""
    padded = np.concatenate([np.zeros(order, np.uint64), ids.astype(np.uint64)])
    code = np.zeros(len(ids), np.uint64)
    for first in range(order + 1):
        code = code * np.uint64(vocabulary) + padded[first : first + len(ids)]
    return code


def _look_up(keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Looks up each query's value, or 0 where the sorted `keys` lack it."""
    place = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[place] == queries, values[place], 0)
