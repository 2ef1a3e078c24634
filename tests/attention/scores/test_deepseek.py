"""DeepSeek sparse attention and the loss of its indexer, against the paper's own form in NumPy."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats

import attention
from attention import Mask, UnsupportedError
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.forms import Tokens
from attention.options import Options
from attention.parameters import Sizes
from attention.scores.dot import DotProduct
from attention.scores.sparse.deepseek import DeepSeekSparse, indexer_loss
from tests.sizes import more

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
SCORE = DeepSeekSparse(heads=3, width=4, top=3)
SEGMENTS = np.arange(2 * LENGTH).reshape(2, LENGTH) // 5
# Each mask with whether token i of sequence b sees token j.
MASKS = {
    "causal": (Mask(causal=True), lambda b, i, j: j <= i),
    "both ways": (Mask(), lambda b, i, j: True),
    "window": (Mask(causal=True, window=5), lambda b, i, j: i - 5 < j <= i),
    "padding": (Mask(key_lengths=jnp.array([6, 9])), lambda b, i, j: j < LENGTHS["padding"][b]),
    "segments": (
        Mask(causal=True, query_segments=jnp.asarray(SEGMENTS), key_segments=jnp.asarray(SEGMENTS)),
        lambda b, i, j: j <= i and SEGMENTS[b, i] == SEGMENTS[b, j],
    ),
}
LENGTHS = {"padding": (6, 9)}
of_masks = pytest.mark.parametrize("mask", ["causal", *(more(name) for name in MASKS if name != "causal")])


@functools.cache
def drawn(score=SCORE, groups=2):
    """Arrays of the indexer, source, queries, keys and values, in NumPy."""
    source = np.asarray(inputs(seed=3)[0]).reshape(2, LENGTH, -1)
    draw = np.random.default_rng(0).normal
    declared = score.parameters(Sizes(source.shape[-1], HEADS, WIDTH, LENGTH))
    w = {name: draw(size=p.shape) for name, p in declared.items()}
    return w, source, *(np.asarray(x) for x in inputs(key_heads=groups))


def scores_of_indexer(w, source):
    """I of one sequence, pair by pair: eq. 1, with the factors and the norm of the published code."""
    key = source @ w["index_key_kernel"]
    key = (key - key.mean(-1, keepdims=True)) / np.sqrt(key.var(-1, keepdims=True) + 1e-6)
    key = key * w["index_key_scale"] + w["index_key_bias"]
    heads, width = w["index_query_kernel"].shape[1:]
    scores = np.zeros((LENGTH, LENGTH))
    for i, j, h in itertools.product(range(LENGTH), range(LENGTH), range(heads)):
        product = (source[i] @ w["index_query_kernel"][:, h]) @ key[j]
        factor = source[i] @ w["index_weight_kernel"][:, h] * heads**-0.5 * width**-0.5
        scores[i, j] += factor * max(product, 0)
    return scores


def by_hand(score, sees):
    """The output, and the loss of the indexer a query, with loops over sequences, queries and heads."""
    w, source, query, key, value = drawn()
    out, losses = np.zeros(query.shape), np.zeros((2, LENGTH))
    for b, i in itertools.product(range(2), range(LENGTH)):
        index = scores_of_indexer(w, source[b])[i]
        seen = [j for j in range(LENGTH) if sees(b, i, j)]
        chosen = seen if score.warm_up else sorted(seen, key=lambda j: -index[j])[: score.top]  # stable: earlier first
        together = np.zeros(len(chosen))
        for n in range(HEADS):
            group = n * key.shape[2] // HEADS
            weights = scipy.special.softmax(key[b, chosen, group] @ query[b, i, n] / np.sqrt(WIDTH))
            out[b, i, n] = weights @ value[b, chosen, group]
            together += weights
        losses[b, i] = scipy.stats.entropy(together, scipy.special.softmax(index[chosen]))  # KL, of what it normalises
    return out, losses


def called(score, implementation, mask, **options):
    w, source, *arrays = jax.tree.map(jnp.asarray, drawn())
    return attention.attend(score, w, *arrays, source=source, mask=mask, implementation=implementation, **options)


def prepared(w, source, query, key, score):
    at = Tokens(0, source)
    return score.prepare_query(w, query, at), score.prepare_key(w, key, at)


@of_masks
@pytest.mark.parametrize("implementation", ["xla", more("chunked"), "chunked(4, 4)"])
def test_it_is_its_papers(implementation, mask):
    """In whole blocks of queries, and in blocks of which the last is not full."""
    lengths, (mask, sees) = LENGTHS.get(mask, (LENGTH, LENGTH)), MASKS[mask]
    found, (expected, _) = called(SCORE, implementation, mask), by_hand(SCORE, sees)
    for b, length in enumerate(lengths):
        chex.assert_trees_all_close(found[b, :length], expected[b, :length], rtol=0, atol=1e-12)


@pytest.mark.parametrize("warm_up", [False, more(True)])
@of_masks
def test_the_loss_of_the_indexer_is_its_papers(mask, warm_up):
    """The mean over real queries of KL from the heads' weights to the softmax of the scores, times a factor."""
    score = DeepSeekSparse(heads=3, width=4, top=3, warm_up=warm_up, weight=0.5)
    lengths, (mask, sees) = LENGTHS.get(mask, (LENGTH, LENGTH)), MASKS[mask]
    _, losses = by_hand(score, sees)
    expected = [0.5 * losses[b, :length].mean() for b, length in enumerate(lengths)]
    w, *arrays, _ = jax.tree.map(jnp.asarray, drawn())
    found = score.own_loss(w, *prepared(w, *arrays, score), Options(mask))
    chex.assert_trees_all_close(found, np.array(expected), rtol=1e-12)


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_in_its_warm_up_it_is_dot_product_attention(implementation):
    _, _, *arrays = drawn()
    causal = Mask(causal=True)
    expected = attention.attend(DotProduct(), {}, *map(jnp.asarray, arrays), mask=causal)
    found = called(DeepSeekSparse(3, 4, 2, warm_up=True), implementation, causal)
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-12)


def test_the_indexer_learns_from_its_loss_alone_and_nothing_else_does():
    """Its gradient is softmax(I) − p, and neither the layer's inputs nor the queries and keys have any."""
    score = DeepSeekSparse(heads=3, width=4, top=3)
    w, source, *arrays = jax.tree.map(jnp.asarray, drawn())
    options = Options(Mask(causal=True))

    def losses(w, source, query, key):
        return score.own_loss(w, *prepared(w, source, query, key, score), options).sum()

    of_indexer, *others = jax.grad(losses, (0, 1, 2, 3))(w, source, *arrays[:2])
    assert all(np.abs(gradient).max() > 1e-6 for gradient in of_indexer.values())
    assert not any(np.any(gradient) for gradient in others)
    main = jax.grad(lambda w: attention.attend(score, w, *arrays, source=source, mask=options.mask).sum())(w)
    assert not any(np.any(gradient) for gradient in main.values())


def test_the_gradient_of_the_loss_is_the_difference_of_the_distributions():
    """Also where nothing, or one key, is seen."""
    draw = np.random.default_rng(2)
    seen = np.tri(5, 4, -1, bool)
    raw = draw.random((2, 3, 5, 4)) * seen
    weights = raw / np.maximum(raw.sum(-1, keepdims=True), 1e-30)
    scores = draw.normal(size=(2, 5, 4))
    p = weights.sum(1) / np.maximum(weights.sum((1, 3))[..., None], 1e-30)
    shares = np.exp(scores) * seen
    shares /= np.maximum(shares.sum(-1, keepdims=True), 1e-30)
    loss = lambda scores, weights: indexer_loss(scores, weights, jnp.broadcast_to(seen, scores.shape)).sum()  # noqa: E731
    of_scores, of_weights = jax.grad(loss, (0, 1))(jnp.asarray(scores), jnp.asarray(weights))
    chex.assert_trees_all_close(of_scores, shares - p, rtol=0, atol=1e-12)
    assert not np.any(of_weights)


def test_tiles_give_no_weights():
    with pytest.raises(UnsupportedError, match="returns no weights from tiles; use 'xla' or 'auto'"):
        called(SCORE, "chunked", Mask(causal=True), return_weights=True)


def test_tiles_hold_no_array_over_all_pairs_but_the_indexers():
    """Of 64 queries and keys: no block of 8 queries has the scores of all heads and keys."""
    arrays = inputs(64, 64, batch=(1,), dtype=jnp.float32)
    w = {n: jnp.asarray(x, jnp.float32) for n, x in drawn()[0].items()}
    source = arrays[0].reshape(1, 64, -1)

    def out(*arrays):
        return attention.attend(
            SCORE, w, *arrays, source=source, mask=Mask(causal=True), implementation="chunked(8, 8)"
        )

    program = str(jax.make_jaxpr(jax.grad(lambda *arrays: out(*arrays).sum(), (0, 1, 2)))(*arrays))
    assert "[1,64,64]" not in program
    assert f"[1,{HEADS},64,64]" not in program
    assert f"[1,{HEADS},8,64]" not in program
    assert f"[1,{SCORE.heads},8,64]" in program  # the indexer's products
