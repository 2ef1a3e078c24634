"""PaTH attention against the plain form of its published code, flash-linear-attention's, in NumPy."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import attention
from attention import Mask
from attention.check.subject import HEADS, WIDTH, inputs
from attention.scores import path
from attention.scores.path import Path
from tests.attention.cases import outcome
from tests.sizes import more

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
LENGTH = 11


def drawn(score):
    """Weights, keys of two groups of heads, and the layer's inputs."""
    draw = np.random.default_rng(0).standard_normal
    made = jax.eval_shape(lambda: attention.init(score, jax.random.key(0), HEADS, WIDTH, model=10))
    weights = {name: jnp.asarray(draw(x.shape)) for name, x in made.items()}
    return weights, *inputs(LENGTH, LENGTH, 2), jnp.asarray(draw((2, LENGTH, 10)))


def attend(score, weights, query, key, value, source, mask=None, **options):
    mask = mask or Mask(causal=True)
    return attention.attend(score, weights, query, key, value, source=source, mask=mask, **options)


def published(w, n, query, key, value, x, forget):
    """One head of one sequence, as the layer decodes: each new token moves all keys that it has kept."""
    raw = np.pad(x @ w["down_kernel"] @ w["up_kernel"][:, n], ((2, 0), (0, 0)))
    raw = sum(raw[tap : tap + len(x)] * w["taps"][tap, n] for tap in range(3))
    raw = raw * scipy.special.expit(raw)
    directions = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    beta = 2 * scipy.special.expit(x @ w["strength_kernel"][:, n] + w["strength_bias"][n])
    fading = np.zeros(len(x))
    if forget:
        fading = scipy.special.log_expit(x @ w["forget_kernel"][:, n] + w["forget_bias"][n])
    kept, gates, out = np.zeros((0, WIDTH)), np.zeros(0), []
    for i, direction in enumerate(directions):
        kept = kept - beta[i] * np.outer(kept @ direction, direction)
        kept, gates = np.vstack([kept, key[i]]), np.append(gates + fading[i], 0.0)
        out.append(scipy.special.softmax((kept @ query[i] + gates) / np.sqrt(WIDTH)) @ value[: i + 1])
    return np.array(out)


@pytest.mark.parametrize("forget", [more(False), True])
@pytest.mark.parametrize("implementation", ["xla", more("reference")])
def test_it_is_the_published_layer(forget, implementation, monkeypatch):
    """Heads share keys, and the tokens are more than two blocks."""
    monkeypatch.setattr(path, "BLOCK", 4)
    score = Path(3, forget)
    weights, query, key, value, source = drawn(score)
    expected = np.zeros(query.shape)
    w = {name: np.asarray(x) for name, x in weights.items()}
    for b, n in np.ndindex(2, HEADS):
        arrays = (np.asarray(x[b, :, at]) for x, at in ((query, n), (key, n // 2), (value, n // 2)))
        expected[b, :, n] = published(w, n, *arrays, np.asarray(source[b]), forget)
    out = attend(score, weights, query, key, value, source, implementation=implementation)
    chex.assert_trees_all_close(out, expected, rtol=0, atol=1e-12)


def test_packed_documents_are_documents_alone(monkeypatch):
    """Neither matrices nor the convolution reach into the next one, nor do gradients."""
    monkeypatch.setattr(path, "BLOCK", 4)
    score, cuts = Path(3, forget=True), (0, 5, 6, LENGTH)
    weights, *arrays = drawn(score)
    segments = jnp.repeat(jnp.arange(3), jnp.diff(jnp.array(cuts)))[None]
    packed = Mask(causal=True, query_segments=segments, key_segments=segments)

    def together(weights, *arrays):
        return attend(score, weights, *arrays, packed)

    def alone(weights, *arrays):
        parts = ([x[:, a:b] for x in arrays] for a, b in itertools.pairwise(cuts))
        return jnp.concatenate([attend(score, weights, *part) for part in parts], 1)

    found, expected = (outcome(of, weights, *arrays) for of in (together, alone))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-11)


@pytest.mark.more
def test_blocks_change_no_gradient(monkeypatch):
    monkeypatch.setattr(path, "BLOCK", 4)
    score = Path(3)

    def of(implementation):
        return lambda *given: attend(score, *given, implementation=implementation)

    found, expected = (outcome(of(name), *drawn(score)) for name in ("xla", "reference"))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)
