"""The rules of the contract. Each raises an AssertionError where a case breaks it; all are in float64."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np

from attention.check.subject import HEADS, LENGTH, SIZES, WIDTH, Arrays, Subject, causal_mask, dense_mask, inputs
from attention.dropout import keep, seed_of
from attention.forms import At, Tokens
from attention.mask import BY_TOKEN, Mask
from attention.options import Options
from attention.recurrences.recurrence import Recurrence

ORDER = jnp.array([3, 1, 6, 0, 2, 5, 4, 8, 7])


def close(found: Any, expected: Any, atol: float = 1e-10) -> None:
    """Holds that two trees of arrays are equal within an absolute tolerance."""
    chex.assert_trees_all_close(found, expected, rtol=0, atol=atol)


def equals_the_reference(case: Subject, name: str) -> None:
    """Its output and all gradients equal those of the definition."""
    _compare(case, name, inputs(), causal_mask())


def equals_the_reference_under_other_masks(case: Subject, name: str) -> None:
    """They do so with fewer key heads, at other lengths, and under every other mask with a bias and dropout.

    The bits of dropout depend only on key and position, so they are the same for all implementations.
    """
    if not case.needs_causal:
        fewer = inputs(5, LENGTH, 2)
        _compare(case, name, fewer, Mask(key_lengths=jnp.array([LENGTH - 2, LENGTH])))
    segments = jnp.arange(2 * LENGTH).reshape(2, LENGTH) // 5
    if case.masks == BY_TOKEN:
        mask = Mask(causal=True, query_segments=segments, key_segments=segments)
        _compare(case, name, inputs(), mask)
    if case.weighted:
        bias = jax.random.normal(jax.random.key(3), (1, HEADS, LENGTH, LENGTH))
        dense = jax.random.bernoulli(jax.random.key(9), 0.7, (2, HEADS, LENGTH, LENGTH))
        mask = Mask(dense=dense, window=6, query_segments=segments, key_segments=segments)
        _compare(case, name, inputs(), mask, bias=bias, dropout_rate=0.3, dropout_key=jax.random.key(1))


def _compare(case: Subject, name: str, arrays: Arrays, mask: Mask, **options: Any) -> None:
    weights = case.weights()
    found, expected = (case.outcome(which, arrays, weights, mask, **options) for which in (name, "reference"))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((found, expected))), (
        "an output or a gradient is not finite"
    )
    # Relative to numbers above 1: with a bias, what `sum` divides by may be nearly 0, and gradients millions.
    sizes = jax.tree.map(lambda x: jnp.maximum(1.0, jnp.abs(x).max(initial=0.0)), expected)
    close(*(jax.tree.map(lambda x, size: x / size, tree, sizes) for tree in (found, expected)))


def uses_every_weight_and_input(case: Subject) -> None:
    """Every parameter and every input that it reads has a gradient; otherwise zeros would be compared.

    Some parameters get theirs from the mechanism's own loss alone.
    """
    _, (weights, *arrays) = case.outcome("reference", inputs(), case.weights(), causal_mask())
    # A bias of an MLP's last layer, or of keys that are multiplied, may shift all scores of a row alike.
    silent = {name for name in weights if case.normalised and re.fullmatch(r"(down|layer)_.*bias", name)}
    assert weights.keys() - _with_gradient(weights) - _with_gradient(_by_own_loss(case)) <= silent
    assert tuple(index for index, gradient in enumerate(arrays) if np.abs(gradient).max() > 1e-6) == case.used


def _with_gradient(gradients: dict[str, jax.Array]) -> set[str]:
    return {name for name, gradient in gradients.items() if np.abs(gradient).max() > 1e-6}


def _by_own_loss(case: Subject) -> dict[str, jax.Array]:
    score, mask = case.score, causal_mask()
    if score is None or not score.traits.own_loss:
        return {}

    def loss(weights: dict[str, jax.Array]) -> jax.Array:
        query, key, _ = _prepared(score, weights, inputs(), 0, None)
        return score.own_loss(weights, query, key, Options(mask)).sum()

    return jax.grad(loss)(case.weights())


def is_close_in_bfloat16(case: Subject, name: str) -> None:
    """In bfloat16 the output is within 4 % and keeps its type."""
    low = tuple(x.astype(jnp.bfloat16) for x in inputs())
    out = case.run(name, low, case.weights(jnp.float32))
    assert out.dtype == jnp.bfloat16
    expected = case.run("reference", tuple(x.astype(jnp.float32) for x in low), case.weights(jnp.float32))
    # Scores of up to tens are rounded to 8 bits before the exponential, and outputs once more.
    error = np.linalg.norm(np.asarray(out, np.float64) - np.asarray(expected, np.float64))
    assert error < 0.04 * np.linalg.norm(expected)


def is_causal(case: Subject, name: str) -> None:
    """Under a causal mask no output has a gradient with respect to a later key or value."""
    token = 3
    direction = jnp.zeros((2, LENGTH, HEADS, 1)).at[:, token].set(1.0) * inputs(seed=5)[0]
    mask = causal_mask((LENGTH, LENGTH))
    _, (_, _, *gradients) = case.outcome(name, inputs(), case.weights(), mask, direction=direction)
    through_keys, through_values = (np.abs(np.asarray(g)).max(axis=(0, 2, 3)) for g in gradients)
    assert not through_keys[token + 1 :].any()
    assert not through_values[token + 1 :].any()
    assert np.all(through_values[: token + 1] > 0) or not case.positive
    assert np.all(through_keys[: token + 1] > 0) == (1 in case.used) or not case.positive


def ignores_what_padding_holds(case: Subject, name: str) -> None:
    """NaN in padded keys and values reaches neither output nor gradient."""
    query, key, value = inputs()
    first, weights = LENGTH - 3, case.weights()
    dirty = (query, key.at[0, first:].set(jnp.nan), value.at[0, first:].set(jnp.nan))
    found = case.outcome(name, dirty, weights, causal_mask())
    chex.assert_tree_all_finite(found)
    close(found, case.outcome(name, (query, key, value), weights, causal_mask()), atol=1e-12)
    for gradient in found[1][2:]:
        assert not np.asarray(gradient[0, first:]).any()


def gives_zeros_where_nothing_is_seen(case: Subject, name: str) -> None:
    """A query that may attend to no key gives zeros, with zero gradient."""
    weights = case.weights()
    nothing = case.outcome(name, inputs(), weights, causal_mask((0, 0)))
    chex.assert_trees_all_equal(nothing, jax.tree.map(jnp.zeros_like, nothing))
    if case.weighted:
        out, gradients = case.outcome(name, inputs(), weights, dense_mask(2))
        chex.assert_tree_all_finite((out, gradients))
        assert not np.asarray(out[:, 2]).any()
        assert not np.asarray(gradients[1][:, 2]).any()
        assert np.abs(out[:, 3]).min() > 0


def takes_padding_as_truncation(case: Subject, name: str) -> None:
    """Padded keys act as if they were not there; under a causal mask the first queries see no more than is left."""
    query, key, value = inputs()
    weights = case.weights()
    out, _ = case.outcome(name, (query, key, value), weights, causal_mask((4, 4)))
    close(out, case.run("reference", (query, key[:, :4], value[:, :4]), weights, Mask(causal=True)))


def depends_on_order_where_it_says(case: Subject, name: str) -> None:
    """Permuting queries permutes outputs, and permuting keys with values changes nothing, where it says so.

    Under a causal mask neither holds.
    """
    query, key, value = inputs()
    shuffled, weights = (key[:, ORDER], value[:, ORDER]), case.weights()

    def output(mask, *arrays):
        return case.outcome(name, arrays, weights, mask)[0]

    free = dense_mask() if case.weighted else Mask(key_lengths=jnp.array([LENGTH, LENGTH]))
    out = output(free, query, key, value)
    moved = output(free, query[:, ORDER], key, value)
    assert np.abs(moved - out[:, ORDER]).max() < 1e-10 or not case.equivariant
    assert np.abs(output(free, query, *shuffled) - out).max() < 1e-10 or not case.unordered
    causal = causal_mask((LENGTH, LENGTH))
    assert np.abs(output(causal, query, *shuffled) - output(causal, query, key, value)).max() > 0.05


def gives_the_weights_that_it_uses(case: Subject, name: str) -> None:
    """Weights are 0 where nothing is allowed, sum to 1 where they say so, and their sum of values is the output."""
    arrays = inputs()
    out, given = case.run(name, arrays, case.weights(), dense_mask(2), return_weights=True)
    expected = np.ones((2, HEADS, LENGTH))
    expected[:, :, 2] = 0
    chex.assert_shape(given, (2, HEADS, LENGTH, LENGTH))
    if case.normalised:
        close(given.sum(-1), expected, atol=1e-12)
    chex.assert_trees_all_equal(np.any(np.asarray(given) != 0, axis=-1), expected > 0)
    if case.weighs:
        close(jnp.einsum("bnts,bsnh->btnh", given, arrays[2]), out, atol=1e-12)


def gives_causal_weights(case: Subject, name: str) -> None:
    """Causal weights are lower-triangular (Wikipedia, masked attention)."""
    _, given = case.run(name, inputs(), case.weights(), Mask(causal=True), return_weights=True)
    assert not np.triu(np.asarray(given), 1).any()
    assert np.all(np.einsum("bnii->bni", np.asarray(given)) > 0) or not case.positive


def drops_weights(case: Subject) -> None:
    """Dropout zeroes weights, and scales those that it keeps."""
    arrays, weights, key = inputs(), case.weights(), jax.random.key(1)
    _, given = case.run("reference", arrays, weights, return_weights=True)
    dropped = case.run("auto", arrays, weights, dropout_rate=0.3, dropout_key=key)
    close(dropped, dropped_by_hand(given, arrays[2], 0.3, key))


def dropped_by_hand(given: jax.Array, value: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    """Drops given weights and sums values."""
    kept = jnp.where(keep(seed_of(key), rate, given.shape), given / (1 - rate), 0.0)
    return jnp.einsum("bnts,bsnh->btnh", kept, value)


def is_what_its_oracle_says(case: Subject) -> None:
    """It is the equation that its own `oracle` computes in NumPy; a score's under the softmax or the sum."""
    score, arrays, weights = case.score, inputs(batch=(1,)), case.weights()
    by_hand = _states_by_hand if isinstance(score, Recurrence) else _scores_by_hand
    for causal in (True,) if case.needs_causal else (True, False):
        out = case.call(weights, *arrays, mask=Mask(causal=causal))
        expected = by_hand(score, jax.tree.map(np.asarray, weights), *(np.asarray(x[0]) for x in arrays), causal)
        close(out[0], expected)


def _scores_by_hand(score: Any, w: Any, query: Any, key: Any, value: Any, causal: bool) -> np.ndarray:
    """Computes `(T, N, H)`."""
    assert score.normaliser in ("softmax", "sum"), "The oracle of a score is compared under the softmax or the sum."
    out = np.zeros_like(query)
    for i, n in itertools.product(range(LENGTH), range(HEADS)):
        seen = range(i + 1) if causal else range(LENGTH)
        pairs = np.array([score.oracle(w, query[i, n], key[j, n], At(i, j, n, HEADS, 0, 1)) for j in seen])
        weights = np.exp(pairs) if score.normaliser == "softmax" else pairs
        out[i, n] = weights / weights.sum() @ value[: len(weights), n]
    return out


def _states_by_hand(score: Any, w: Any, query: Any, key: Any, value: Any, causal: bool) -> np.ndarray:
    """Computes `(T, N, H)`; without causality, each query reads what all keys have written."""
    out, source = np.zeros_like(query), key.reshape(LENGTH, -1)
    for n, i in itertools.product(range(HEADS), range(LENGTH)):
        state = jax.tree.map(np.asarray, score.begin(WIDTH, WIDTH))
        for j in range(i + 1 if causal else LENGTH):
            state, out[i, n] = score.oracle(w, n, state, source[j], key[j, n], value[j, n], query[i, n])
    return out


def decodes_as_it_trains(case: Subject) -> None:
    """Tokens behind a cache of the keys or the state of others give what the whole sequence gives."""
    score, weights, arrays, cut = case.score, case.weights(), inputs(), 5
    whole = case.call(weights, *arrays, mask=Mask(causal=True))
    early, late = (tuple(x[:, part] for x in arrays) for part in (slice(cut), slice(cut, None)))
    mask = Mask(causal=True, query_offset=cut)
    query, first, _ = _prepared(score, weights, early, 0, None)
    if isinstance(score, Recurrence):
        state = score.start(SIZES, whole.shape[:1], whole.dtype)
        out, state = score.advance(weights, query, first, early[2], state, Mask(causal=True))
        query, second, value = _prepared(score, weights, late, cut, None)
        after, _ = score.advance(weights, query, second, value, state, mask)
        close(jnp.concatenate([out, after], 1), whole)
    else:
        before = jax.tree.map(lambda x: x[:, -1:], first)
        query, second, _ = _prepared(score, weights, late, cut, before)
        keys = jax.tree.map(lambda x, y: jnp.concatenate([x, y], 1), first, second)
        close(score.attend(weights, query, keys, arrays[2], Options(mask)), whole[:, cut:])


def _prepared(score: Any, weights: Any, arrays: Arrays, first: int, before: Any) -> tuple[Any, Any, Any]:
    query, key, value = arrays
    at = Tokens(first, key.reshape(*key.shape[:-2], -1), before=before)
    read = score.prepare_query(weights, query, at) if score.traits.reads_query else query
    return read, score.prepare_key(weights, key, at) if score.traits.reads_key else None, value


# Rules of a case, and of a case in each of its implementations.
OF_A_CASE: tuple[Callable[[Subject], None], ...] = (
    is_what_its_oracle_says,
    uses_every_weight_and_input,
    decodes_as_it_trains,
    drops_weights,
)
OF_A_FORM: tuple[Callable[[Subject, str], None], ...] = (
    equals_the_reference,
    equals_the_reference_under_other_masks,
    is_causal,
    ignores_what_padding_holds,
    gives_zeros_where_nothing_is_seen,
    takes_padding_as_truncation,
    depends_on_order_where_it_says,
    gives_the_weights_that_it_uses,
    gives_causal_weights,
    is_close_in_bfloat16,
)


def why_not(rule: Callable[..., None], case: Subject, name: str = "") -> str:
    """Says why a rule does not concern a case, or its implementation of that name; '' where it does."""
    if rule is is_what_its_oracle_says:
        around = isinstance(case.score, Recurrence) and case.score.traits.one_sequence  # more than a step
        has = case.score and case.score.oracle and not around
        return "" if has else "it has no oracle: no NumPy form of its equation"
    if rule is decodes_as_it_trains and case.score is None:
        return "it is a function, without a cache"
    if rule in (gives_the_weights_that_it_uses, gives_causal_weights) and name in ("chunked", "pallas"):
        return "it gives no weights"
    if rule in (gives_the_weights_that_it_uses, gives_causal_weights, drops_weights) and not case.weighted:
        return "a state has no weights"
    if rule is drops_weights and not case.weighs:
        return "its output is no sum of values"
    if rule is equals_the_reference and name == "reference":
        return "it is the definition"
    return ""
