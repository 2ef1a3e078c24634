"""Choice of blocks of keys by content, against its papers' own forms in NumPy."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import attention
from attention import Mask
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.mask import choose_blocks
from attention.normaliser import normaliser_of
from attention.parameters import Sizes
from attention.scores.dot import DotProduct
from attention.scores.sparse.native import NativeSparse
from tests.sizes import more

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
SIZE, TOP = 2, 3


def moba(query, key, value, size, top):
    """Lu et al. 2025, section 2.2, one head: a block's gate is the query times its mean key; its own block is open."""
    out = np.zeros((len(query), value.shape[1]))
    for i, q in enumerate(query):
        past = range(i // size)
        gates = [q @ key[block * size : (block + 1) * size].mean(0) for block in past]
        best = [*np.argsort(gates)[::-1][: top - 1], i // size]
        keys = [j for block in best for j in range(block * size, min((block + 1) * size, i + 1))]
        out[i] = scipy.special.softmax(key[keys] @ q / np.sqrt(len(q))) @ value[keys]
    return out


@pytest.mark.parametrize(("size", "top"), [(SIZE, TOP), more(3, 9)])
def test_moba_is_its_papers(size, top):
    """Each of four heads chooses by itself, also where two share their keys."""
    query, key, value = inputs(key_heads=2)
    expected = np.zeros(query.shape)
    for b, n in itertools.product(range(2), range(HEADS)):
        expected[b, :, n] = moba(
            *(np.asarray(x) for x in (query[b, :, n], key[b, :, n // 2], value[b, :, n // 2])), size, top
        )
    score = DotProduct(normaliser=f"blocks(size={size}, top={top})")
    out = attention.attend(score, {}, query, key, value, mask=Mask(causal=True))
    chex.assert_trees_all_close(out, expected, rtol=0, atol=1e-12)


def test_equal_scores_do_not_add_blocks():
    visible = jnp.array([[True, True, True, True, False], [False, True, False, False, False], [False] * 5])
    chosen = choose_blocks(jnp.zeros((3, 5)), visible, 2)
    np.testing.assert_array_equal(chosen, [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0] * 5])


def test_the_mean_of_a_block_is_of_the_keys_that_are_seen():
    seen = jnp.array([[[True, False, True, True, True, True]]])
    weights = normaliser_of("blocks(size=2, top=2)").weigh({}, jnp.array([[[1.0, 9.0, 0.8, 0.8, 0.0, 0.0]]]), seen)
    np.testing.assert_array_equal(weights > 0, [[[True, False, False, False, True, True]]])


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def compress(w, side, x):
    """Yuan et al. 2025, eq. 7, one head: an MLP on the concatenated keys or values of each block with their places."""
    blocks = [x[end - SIZE : end] + w[f"{side}_place"] for end in range(SIZE, len(x) + 1, SIZE)]
    hidden = [gelu(block.ravel() @ w[f"{side}_flat_kernel"] + w[f"{side}_flat_bias"]) for block in blocks]
    return np.array(hidden) @ w[f"{side}_out_kernel"]


def native_sparse(w, source, query, key, value, near):
    """Section 3, one group of heads: query (G, T, H), and key and value (T, H) that they share; gates (G, T, 3)."""
    gates = scipy.special.expit(np.einsum("td,dgc->gtc", source, w["gate_kernel"]))
    short_keys, short_values = compress(w, "key", key), compress(w, "value", value)
    out, weigh = np.zeros(query.shape), lambda q, k: scipy.special.softmax(k @ q / np.sqrt(len(q)))
    for i in range(len(key)):
        done, local = (i + 1) // SIZE, i // SIZE
        importance = np.zeros(local + 1)
        for q in query[:, i]:
            importance[:done] += weigh(q, short_keys[:done]) if done else 0
        importance[local] = np.inf  # the block that the query stands in
        chosen = np.argsort(importance)[::-1][:TOP]
        selected = [j for block in chosen for j in range(block * SIZE, min(i + 1, (block + 1) * SIZE))]
        branches = (short_keys[:done], short_values[:done]), (key[selected], value[selected])
        branches += ((key[max(0, i + 1 - near) : i + 1], value[max(0, i + 1 - near) : i + 1]),)
        for g, q in enumerate(query[:, i]):
            out[g, i] = sum(
                gate * weigh(q, k) @ v for gate, (k, v) in zip(gates[g, i], branches, strict=True) if len(k)
            )
    return out


@pytest.mark.parametrize("groups", [more(1), 2])
def test_native_sparse_attention_is_its_papers(groups):
    score, near = NativeSparse(SIZE, TOP, near=3), 3
    query, key, value = (np.asarray(x) for x in inputs(key_heads=groups))
    source = np.asarray(inputs(seed=3)[0]).reshape(2, LENGTH, -1)
    declared = score.parameters(Sizes(source.shape[-1], HEADS, WIDTH, LENGTH))
    draw = np.random.default_rng(0).normal
    w = {name: draw(size=p.shape) for name, p in declared.items()}
    expected, together = np.zeros(query.shape), HEADS // groups
    for b, k in itertools.product(range(2), range(groups)):
        heads = slice(k * together, (k + 1) * together)
        own = w | {"gate_kernel": w["gate_kernel"][:, heads]}
        of_group = query[b, :, heads].swapaxes(0, 1), key[b, :, k], value[b, :, k]
        expected[b, :, heads] = native_sparse(own, source[b], *of_group, near).swapaxes(0, 1)
    arrays = jax.tree.map(jnp.asarray, (w, query, key, value))
    for implementation in ("xla", "chunked"):
        options = {"mask": Mask(causal=True), "source": jnp.asarray(source), "implementation": implementation}
        chex.assert_trees_all_close(attention.attend(score, *arrays, **options), expected, rtol=0, atol=1e-12)
