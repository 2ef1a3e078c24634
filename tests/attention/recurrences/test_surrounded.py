"""What layers have around a recurrence, in NumPy, around the recurrence alone, which has a test of its own."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import attention
from attention import Mask, UsageError
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.parameters import Sizes
from attention.recurrences.gated import GatedDelta
from attention.recurrences.selective import StateSpace
from tests.sizes import more

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
TAPS, EPSILON = 3, 0.1


def silu(x):
    return x * scipy.special.expit(x)


def convolved(w, part, x):
    """Each number of `(B, T, N, H)` by itself, with what is up to two tokens before it."""
    out = np.zeros_like(x)
    for token in range(LENGTH):
        for tap in range(TAPS):
            if token + tap >= TAPS - 1:
                out[:, token] += w[f"{part}_taps"][tap] * x[:, token + tap - TAPS + 1]
    return out + w[f"{part}_taps_bias"]


def normed(w, x):
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + EPSILON) * w["gate_scale"]


@pytest.mark.parametrize(
    ("whole", "alone"),
    [
        (GatedDelta(conv=TAPS, gate="norm_first", epsilon=EPSILON), GatedDelta()),
        (StateSpace(conv=TAPS, gate="gate_first", epsilon=EPSILON, skip=True), StateSpace()),
    ],
)
def test_convolutions_skip_and_gated_norm_are_around_the_recurrence(whole, alone):
    sizes = Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    w = {n: np.random.default_rng(0).normal(size=p.shape) for n, p in whole.parameters(sizes).items()}
    query, key, value = (np.asarray(x) for x in inputs())
    source = np.asarray(inputs(seed=3)[0]).reshape(2, LENGTH, -1)
    options = {"source": jnp.asarray(source), "mask": Mask(causal=True)}
    found, weights_found = attention.attend(
        whole, jax.tree.map(jnp.asarray, w), *map(jnp.asarray, (query, key, value)), return_weights=True, **options
    )
    query, key, value = (convolved(w, *pair) for pair in (("query", query), ("key", key), ("value", value)))
    value, factor = silu(value), silu(np.einsum("btd,dnh->btnh", source, w["gate_kernel"]))
    if isinstance(whole, StateSpace):  # which has no SiLU of its own
        query, key = silu(query), silu(key)
    params = {name: jnp.asarray(w[name]) for name in alone.parameters(sizes)}
    out, weights = attention.attend(
        alone, params, *map(jnp.asarray, (query, key, value)), return_weights=True, **options
    )
    out = np.asarray(out)
    if isinstance(whole, StateSpace):
        out = normed(w, (out + w["skip"][:, None] * value) * factor)
    else:
        out = normed(w, out) * factor
    chex.assert_trees_all_close(found, out, rtol=0, atol=1e-10)
    chex.assert_trees_all_close(weights_found, weights, rtol=0, atol=1e-10)  # of convolved values, before the rest


def test_what_looks_at_the_tokens_of_queries_is_not_for_cross_attention():
    looking = GatedDelta(conv=3), GatedDelta(gate="norm_first"), GatedDelta(skip=True)
    assert not any(score.traits.cross for score in looking)
    assert GatedDelta().traits.cross


@pytest.mark.parametrize("implementation", [more("reference"), "chunked"])
def test_queries_and_keys_of_a_group_are_those_of_all_its_heads(implementation):
    """Whatever their width, which a matrix from keys to values need not share."""
    wide, sizes = WIDTH + 1, Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    alone, score = GatedDelta(conv=TAPS), GatedDelta(groups=1, conv=TAPS, state=wide)
    draw = np.random.default_rng(0).normal
    w = {name: jnp.asarray(draw(size=p.shape)) for name, p in score.parameters(sizes).items()}
    query, key = (jnp.asarray(draw(size=(2, LENGTH, 1, wide))) for _ in range(2))
    value, source = inputs()[2], jnp.asarray(draw(size=(2, LENGTH, HEADS * WIDTH)))
    options = {"source": source, "mask": Mask(causal=True), "implementation": implementation}
    found = attention.attend(score, w, query, key, value, **options)
    spread = {n: jnp.repeat(x, HEADS, -2) if n.startswith(("query", "key")) else x for n, x in w.items()}
    query, key = (jnp.repeat(x, HEADS, -2) for x in (query, key))
    chex.assert_trees_all_close(found, attention.attend(alone, spread, query, key, value, **options), atol=1e-12)
    with pytest.raises(UsageError, match=r"Queries and keys must end in \(1, "):
        attention.attend(score, w, query, key, value, **options)
