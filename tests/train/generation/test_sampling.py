"""Choosing tokens, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from train.generation.sampling import BLOCK, Sampling, highest

LOGITS = np.array([[2.0, 0.5, 2.0, -1.0, 0.0], [0.1, 0.2, 0.3, 0.4, 0.5]], np.float32)


def reference(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The distribution one token at a time, in double precision."""
    logits = np.asarray(logits, np.float64) / temperature
    order = np.argsort(-logits, kind="stable")
    allowed = order[: top_k or len(order)]
    probabilities = np.exp(logits[allowed]) / np.exp(logits[allowed]).sum()
    kept, total = [], 0.0
    for token, probability in zip(allowed, probabilities, strict=True):
        if total >= top_p:
            break
        kept.append(token)
        total += probability
    highest = np.exp(logits[kept[0]])
    kept = [token for token in kept if np.exp(logits[token]) >= min_p * highest]
    out = np.zeros(len(logits))
    out[kept] = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    return out


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_k": 99},
        {"top_p": 1e-9},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.7},
        {"min_p": 0.2},
        {"temperature": 2.0, "top_p": 0.8, "min_p": 0.4},
    ],
)
def test_distributions_are_those_of_numpy(options):
    got = jax.nn.softmax(Sampling(**options).filtered(jnp.asarray(LOGITS)), axis=-1)
    np.testing.assert_allclose(got, [reference(row, **options) for row in LOGITS], atol=1e-6)


def test_repetitions_are_penalised_once_and_never_preferred():
    tokens, seen = jnp.array([[0, 3, 0, 1], [4, 4, 2, 0]]), jnp.array([[True, True, True, False]])
    got = Sampling(repetition_penalty=2.0).penalised(jnp.asarray(LOGITS), tokens, seen)
    np.testing.assert_allclose(got, [[1.0, 0.5, 2.0, -2.0, 0.0], [0.1, 0.2, 0.15, 0.4, 0.25]], rtol=1e-6)
    np.testing.assert_array_equal(Sampling().penalised(jnp.asarray(LOGITS), tokens, seen), LOGITS)


def test_draws_follow_the_distribution():
    sampling = Sampling(temperature=1.5, top_k=3)
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = np.asarray(sampling.choose(jnp.broadcast_to(LOGITS[:1], (20_000, 5)), keys))
    frequencies = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(frequencies, reference(LOGITS[0], temperature=1.5, top_k=3), atol=0.015)


def test_options_out_of_range_are_refused():
    with pytest.raises(UsageError, match=r"temperature must be above 0, or 0 \(greedy\), but it is -1.0"):
        Sampling(temperature=-1.0)


@pytest.mark.parametrize("width", [5, 9 * BLOCK, 20 * BLOCK + 7])
@pytest.mark.parametrize("count", [1, 5])
def test_highest_is_top_k_whatever_is_equal(width, count):
    few = jax.random.randint(jax.random.key(width), (3, width), 0, 6).astype(jnp.float32)
    none = few.at[0].set(-jnp.inf).at[1, width // 2 :].set(-jnp.inf)
    for logits in (few, none, jax.random.normal(jax.random.key(0), (3, width))):
        found = tuple(jax.jit(highest, static_argnums=1)(logits, count))
        jax.tree.map(np.testing.assert_array_equal, found, tuple(jax.lax.top_k(logits, count)))
