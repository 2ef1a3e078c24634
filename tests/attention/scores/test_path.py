"""PaTH attention against its equation in NumPy, and its two ways to compute it against each other."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import attention
from attention import Mask, UnsupportedError
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.scores.path import Path
from tests.attention.cases import CASES

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
CASE = CASES["path"]


def by_hand(weights, source, query, key, value):
    """Multiplies the matrices of all tokens between a key and a query."""
    out = np.zeros_like(query)
    for head in range(HEADS):
        turns = source @ weights["turn_down_kernel"] @ weights["turn_up_kernel"][:, head]
        turns = turns / np.linalg.norm(turns, axis=-1, keepdims=True)
        logits = source @ weights["strength_kernel"][:, head] + weights["strength_bias"][head]
        matrices = [
            np.eye(WIDTH) - 2 * scipy.special.expit(x) * np.outer(w, w) for x, w in zip(logits, turns, strict=True)
        ]
        for i in range(LENGTH):
            turned, scores = query[i, head], np.zeros(i + 1)
            for j in range(i, -1, -1):
                scores[j] = turned @ key[j, head] / np.sqrt(WIDTH)
                turned = turned @ matrices[j]
            out[i, head] = scipy.special.softmax(scores) @ value[: i + 1, head]
    return out


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_it_is_its_papers(implementation):
    arrays, weights = inputs(batch=(1,)), CASE.weights()
    found = CASE.run(implementation, arrays, weights, Mask(causal=True))
    query, key, value = (np.asarray(x[0]) for x in arrays)
    expected = by_hand(jax.tree.map(np.asarray, weights), key.reshape(LENGTH, -1), query, key, value)
    np.testing.assert_allclose(found[0], expected, atol=1e-12)


def test_one_query_behind_a_cache_with_empty_slots_is_that_of_the_whole_sequence():
    """As in decoding, where a single query is turned by one token after another."""
    (query, key, value), weights = inputs(), CASE.weights()
    whole = CASE.run("reference", (query, key, value), weights, Mask(causal=True))
    at = 5
    emptied = (jnp.where(jnp.arange(LENGTH)[None, :, None, None] <= at, x, 0) for x in (key, value))
    mask = Mask(causal=True, query_offset=at)
    source = key.reshape(*key.shape[:2], -1)
    one = attention.attend(Path(rank=3), weights, query[:, at : at + 1], *emptied, source=source, mask=mask)
    chex.assert_trees_all_close(one, whole[:, at : at + 1], rtol=0, atol=1e-12)


def test_it_needs_a_causal_mask():
    with pytest.raises(UnsupportedError, match="PaTH attention needs a causal mask"):
        CASE.call(CASE.weights(), *inputs())
