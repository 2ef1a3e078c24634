"""What needs no network: n-gram models of tokens, to judge a language model by."""

import numpy as np
from jaxtyping import Float, Integer


def ngram_losses(
    train: Integer[np.ndarray, "S"], test: Integer[np.ndarray, "T"], context: int, vocabulary: int
) -> Float[np.ndarray, "T"]:
    """−log p of each test token given the `context` tokens before it, counted in `train`, in nats.

    Interpolated Witten-Bell smoothing (Witten and Bell 1991; Chen and Goodman 1998, §2.4):

        p_k(w | h) = (c(h w) + t(h) p_{k-1}(w | h')) / (c(h) + t(h))

    with c a count, t(h) how many different tokens follow h, h' the context h without its first token, and p_{-1}
    uniform. The first tokens of a text have ids 0 before them. A context of 0 is the unigram.

    Args:
      train: Ids to count.
      test: Ids to predict.
      context: How many tokens before it a token is predicted from; vocabulary^(context + 1) must fit 64 bits.
      vocabulary: Ids are below it.
    """
    if vocabulary ** (context + 1) >= 2**64:
        raise ValueError(f"{context + 1} tokens of {vocabulary} do not fit 64 bits.")
    probability = np.full(len(test), 1 / vocabulary)
    for order in range(context + 1):
        pairs, count = np.unique(_codes(train, order, vocabulary), return_counts=True)
        contexts, place = np.unique(pairs // np.uint64(vocabulary), return_inverse=True)
        total, types = np.bincount(place, count), np.bincount(place)
        wanted = _codes(test, order, vocabulary)
        seen = _look_up(pairs, count, wanted)
        before = wanted // np.uint64(vocabulary)
        follow, differ = _look_up(contexts, total, before), _look_up(contexts, types, before)
        mixed = (seen + differ * probability) / np.maximum(follow + differ, 1)
        probability = np.where(follow > 0, mixed, probability)
    return -np.log(probability)


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
