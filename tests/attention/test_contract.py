"""What every attention function keeps to, whatever computes it: one body for all cases of `cases.py`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UnsupportedError, UsageError
from attention.dropout import keep, seed_of
from attention.kernels import loops
from attention.kernels.loops import plan
from tests.attention.cases import (
    ALL,
    CASES,
    FAST,
    HEADS,
    LENGTH,
    WEIGHTED,
    causal_mask,
    dense_mask,
    inputs,
    mask_of,
    outcome,
)
from tests.sizes import once

ONE_OF_EACH_KERNEL = [
    *((name, which) for name in ("dot_product", "neural", "linear", "delta") for which in ("xla", "chunked")),
    *((name, "xla") for name in ("neural unique", "gaussian unsquared", "positional")),
]
# Every family in `make test`, by the implementation that is chosen for it.
KEPT = [
    *((name, "chunked") for name in ("dot_product", "neural", "additive", "gaussian", "linear", "delta")),
    *((name, "xla") for name in ("neural unique", "luong general", "positional factorised", "location")),
]
FEW = [(name, "chunked") for name in ("dot_product", "neural", "delta")] + [("positional factorised", "xla")]
ONE = FEW[:1]
WITH_WEIGHTS = [("dot_product", "reference"), ("neural unique", "xla"), ("positional factorised", "xla")]
each = pytest.mark.parametrize(("name", "implementation"), once(ALL, KEPT))
of_a_few = pytest.mark.parametrize(("name", "implementation"), once(ALL, FEW))
of_one = pytest.mark.parametrize(("name", "implementation"), once(ALL, ONE))
ORDER = jnp.array([3, 1, 6, 0, 2, 5, 4, 8, 7])

# In one process, so that nothing is traced and compiled twice.
pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]


def run(name, implementation, arrays, weights, mask=None, **options):
    """Output alone, without compilation of the whole."""
    mask = mask_of(CASES[name], mask)
    return CASES[name].call(weights, *arrays, mask=mask, implementation=implementation, **options)


def outcomes(name, implementation, arrays, *rest, **options):
    """What an implementation gives, and what the definition gives."""
    weights = CASES[name].weights()
    return tuple(outcome(name, which, arrays, weights, *rest, **options) for which in (implementation, "reference"))


@pytest.mark.parametrize(("name", "implementation"), once(FAST, KEPT))
def test_equals_the_reference_in_output_and_all_gradients(name, implementation):
    chex.assert_trees_all_close(*outcomes(name, implementation, inputs(), causal_mask()), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("name", "implementation"), once(FAST, FEW))
def test_equals_the_reference_in_other_shapes_and_under_every_other_mask(name, implementation):
    """With fewer key heads and more keys than queries, padding alone; then every other mask with a bias and dropout,
    whose bits are a function of key and position, so the same for all implementations.
    """
    case = CASES[name]
    if not case.needs_causal:
        fewer = inputs(5, LENGTH, 2 if case.grouped else HEADS)
        lengths = Mask(key_lengths=jnp.array([LENGTH - 2, LENGTH]))
        chex.assert_trees_all_close(*outcomes(name, implementation, fewer, lengths), rtol=0, atol=1e-10)
    if case.weighted:
        bias = jax.random.normal(jax.random.key(3), (1, HEADS, LENGTH, LENGTH))
        segments = jnp.arange(2 * LENGTH).reshape(2, LENGTH) // 5
        dense = jax.random.bernoulli(jax.random.key(9), 0.7, (2, HEADS, LENGTH, LENGTH))
        mask = Mask(dense=dense, window=6, query_segments=segments, key_segments=segments)
        options = {"bias": bias, "dropout_rate": 0.3, "dropout_key": jax.random.key(1)}
        chex.assert_trees_all_close(*outcomes(name, implementation, inputs(), mask, **options), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", once(CASES, dict(KEPT)))
def test_every_weight_and_input_counts(name):
    """Otherwise gradients would be compared where they are zero."""
    case = CASES[name]
    _, (weights, *arrays) = outcome(name, "reference", inputs(), case.weights(), causal_mask())
    # The last bias of shared weights shifts all scores of a row alike.
    silent = {"bias_2"} if "bias_2" in weights and "unique" not in name else set()
    silent |= {key for key in weights if key.startswith("index_")}  # an indexer learns from a loss of its own
    assert {key for key, gradient in weights.items() if np.abs(gradient).max() < 1e-6} == silent
    assert tuple(index for index, gradient in enumerate(arrays) if np.abs(gradient).max() > 1e-6) == case.used


@pytest.mark.parametrize(
    ("name", "implementation"), once([pair for pair in FAST if pair[1] == "chunked" and not CASES[pair[0]].fixed], ONE)
)
def test_lengths_that_are_no_multiple_of_a_block(monkeypatch, name, implementation):
    monkeypatch.setattr(loops, "rule", lambda call, units: plan.Tiling(64, 48))
    arrays, weights = inputs(130, 130, batch=(1,)), CASES[name].weights()
    mask = Mask(causal=True, key_lengths=jnp.array([101]))
    found, expected = (outcome(name, which, arrays, weights, mask) for which in (implementation, "xla"))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


@of_one
def test_bfloat16_is_close_and_keeps_its_dtype(name, implementation):
    case = CASES[name]
    low = tuple(x.astype(jnp.bfloat16) for x in inputs())
    out = run(name, implementation, low, case.weights(jnp.float32))
    assert out.dtype == jnp.bfloat16
    expected = run(name, "reference", tuple(x.astype(jnp.float32) for x in low), case.weights(jnp.float32))
    # Scores of up to tens are rounded to 8 bits before the exponential, and outputs once more.
    error = np.linalg.norm(np.asarray(out, np.float64) - np.asarray(expected, np.float64))
    assert error < 0.04 * np.linalg.norm(expected)


@each
def test_causality_by_gradient(name, implementation):
    case, token = CASES[name], 3
    direction = jnp.zeros((2, LENGTH, HEADS, 1)).at[:, token].set(1.0) * inputs(seed=5)[0]
    mask = causal_mask((LENGTH, LENGTH))
    _, (_, _, *gradients) = outcome(name, implementation, inputs(), case.weights(), mask, direction=direction)
    through_keys, through_values = (np.abs(np.asarray(g)).max(axis=(0, 2, 3)) for g in gradients)
    assert not through_keys[token + 1 :].any()
    assert not through_values[token + 1 :].any()
    assert np.all(through_values[: token + 1] > 0) or not case.positive
    assert np.all(through_keys[: token + 1] > 0) == (1 in case.used) or not case.positive


@each
def test_nan_in_padding_reaches_nothing(name, implementation):
    query, key, value = inputs()
    first = LENGTH - 3
    dirty = (query, key.at[0, first:].set(jnp.nan), value.at[0, first:].set(jnp.nan))
    weights = CASES[name].weights()
    found = outcome(name, implementation, dirty, weights, causal_mask())
    chex.assert_tree_all_finite(found)
    clean = outcome(name, implementation, (query, key, value), weights, causal_mask())
    chex.assert_trees_all_close(found, clean, rtol=0, atol=1e-12)
    for gradient in found[1][2:]:
        assert not np.asarray(gradient[0, first:]).any()


@each
def test_rows_with_nothing_to_attend_to_are_zero_with_zero_gradient(name, implementation):
    weights = CASES[name].weights()
    nothing = outcome(name, implementation, inputs(), weights, causal_mask((0, 0)))
    chex.assert_trees_all_equal(nothing, jax.tree.map(jnp.zeros_like, nothing))
    if CASES[name].weighted:
        out, gradients = outcome(name, implementation, inputs(), weights, dense_mask(2))
        chex.assert_tree_all_finite((out, gradients))
        assert not np.asarray(out[:, 2]).any()
        assert not np.asarray(gradients[1][:, 2]).any()
        assert np.abs(out[:, 3]).min() > 0


@of_one
def test_key_padding_equals_truncation(name, implementation):
    """Under a causal mask the first queries see no more than there is left."""
    query, key, value = inputs()
    weights = CASES[name].weights()
    out, _ = outcome(name, implementation, (query, key, value), weights, causal_mask((4, 4)))
    cut = run(name, "reference", (query, key[:, :4], value[:, :4]), weights, Mask(causal=True))
    chex.assert_trees_all_close(out, cut, rtol=0, atol=1e-10)


@of_a_few
def test_permutations(name, implementation):
    """Queries are equivariant, keys with their values invariant, exactly where they must be; causal is neither."""
    case = CASES[name]
    query, key, value = inputs()
    shuffled = key[:, ORDER], value[:, ORDER]
    weights = case.weights()

    def output(mask, *arrays):
        return outcome(name, implementation, arrays, weights, mask)[0]

    free = dense_mask() if case.weighted else Mask(key_lengths=jnp.array([LENGTH, LENGTH]))
    out = output(free, query, key, value)
    moved = output(free, query[:, ORDER], key, value)
    assert (np.abs(moved - out[:, ORDER]).max() < 1e-10) == case.equivariant
    assert (np.abs(output(free, query, *shuffled) - out).max() < 1e-10) == case.unordered
    causal = causal_mask((LENGTH, LENGTH))
    assert np.abs(output(causal, query, *shuffled) - output(causal, query, key, value)).max() > 0.05


@pytest.mark.parametrize(("name", "implementation"), once(WEIGHTED, WITH_WEIGHTS))
def test_weights_sum_to_one_where_something_is_allowed(name, implementation):
    case, arrays = CASES[name], inputs()
    out, given = run(name, implementation, arrays, case.weights(), dense_mask(2), return_weights=True)
    expected = np.ones((2, HEADS, LENGTH))
    expected[:, :, 2] = 0
    chex.assert_shape(given, (2, HEADS, LENGTH, LENGTH))
    if case.normalised:
        chex.assert_trees_all_close(given.sum(-1), expected, atol=1e-12)
    chex.assert_trees_all_equal(np.any(np.asarray(given) != 0, axis=-1), expected > 0)
    if case.weighs:
        chex.assert_trees_all_close(jnp.einsum("bnts,bsnh->btnh", given, arrays[2]), out, atol=1e-12)


@pytest.mark.parametrize(("name", "implementation"), once(WEIGHTED, WITH_WEIGHTS))
def test_causal_weights_are_lower_triangular(name, implementation):
    """Wikipedia, masked attention."""
    _, given = run(name, implementation, inputs(), CASES[name].weights(), Mask(causal=True), return_weights=True)
    assert not np.triu(np.asarray(given), 1).any()
    assert np.all(np.einsum("bnii->bni", np.asarray(given)) > 0) or not CASES[name].positive


def _dropped_by_hand(given, value, rate, key):
    kept = jnp.where(keep(seed_of(key), rate, given.shape), given / (1 - rate), 0.0)
    return jnp.einsum("bnts,bsnh->btnh", kept, value)


@pytest.mark.parametrize(
    "name", once([name for name, case in CASES.items() if case.weighted and case.weighs], ["dot_product"])
)
def test_dropout_is_of_the_weights(name):
    arrays, weights, key = inputs(), CASES[name].weights(), jax.random.key(1)
    _, given = run(name, "reference", arrays, weights, return_weights=True)
    dropped = run(name, "auto", arrays, weights, dropout_rate=0.3, dropout_key=key)
    chex.assert_trees_all_close(dropped, _dropped_by_hand(given, arrays[2], 0.3, key), rtol=0, atol=1e-10)


@pytest.mark.more
def test_dropout_keeps_the_mean():
    arrays = inputs()
    plain, given = run("dot_product", "reference", arrays, {}, return_weights=True)
    keys = jax.random.split(jax.random.key(2), 2000)
    samples = jax.vmap(lambda key: _dropped_by_hand(given, arrays[2], 0.3, key))(keys)
    error = samples.std(0) / np.sqrt(2000) + 1e-9
    assert np.all(np.abs(np.asarray(samples.mean(0) - plain)) < 5.5 * np.asarray(error))


@pytest.mark.parametrize(("name", "implementation"), once(ONE_OF_EACH_KERNEL, ONE))
def test_vmap_and_remat_change_nothing(name, implementation):
    query, key, value = inputs(batch=(3, 2))
    weights, mask = CASES[name].weights(), Mask(causal=True)

    def scalar(value, attend):
        return jnp.sum(jnp.sin(attend(query, key, value)))

    def attend(*arrays):
        return run(name, implementation, arrays, weights, mask)

    gradient = lambda f: jax.jit(lambda value: jax.value_and_grad(scalar)(value, f))(value)  # noqa: E731
    chex.assert_trees_all_close(gradient(jax.vmap(attend)), gradient(jax.checkpoint(attend)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", once(CASES, dict(KEPT)))
def test_what_it_cannot_do_is_one_sentence(name):
    case, arrays = CASES[name], inputs()
    weights = case.weights()
    with pytest.raises(
        UsageError, match=r"Unknown attention implementation 'fast'.*Valid: auto, chunked, cudnn, pallas"
    ):
        run(name, "fast", arrays, weights)
    with pytest.raises(UnsupportedError, match=r"has no implementation|cannot do this call"):
        run(name, "cudnn", arrays, weights)
    if case.weighted:
        with pytest.raises(UsageError, match=r"at most 0\.999, but it is 1\.5"):
            run(name, "auto", arrays, weights, dropout_rate=1.5)
        with pytest.raises(UsageError, match="needs a dropout_key"):
            run(name, "auto", arrays, weights, dropout_rate=0.5)
        return
    with pytest.raises(UnsupportedError, match="has no attention dropout: it keeps a running state"):
        run(name, "auto", arrays, weights, dropout_rate=0.1, dropout_key=jax.random.key(0))
    with pytest.raises(UsageError, match="honour a mask of kind window; it honours causal, key_lengths"):
        run(name, "auto", arrays, weights, Mask(window=2))
