"""The recurrent encoder-decoder: Wikipedia's equations in plain NumPy, padding, steps, teacher forcing, parameters."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError, location_attention
from models.seq2seq import VARIANTS, Seq2Seq, Seq2SeqConfig
from tests.models.small import apply, random_params
from tests.sizes import once
from train.state import count_parameters

CONFIG = Seq2SeqConfig(
    name="seq2seq", attention="dot", cell="gru", embedding=4, hidden=6, dropout=0.0, teacher_forcing=1.0
)
SOURCE = jax.random.randint(jax.random.key(0), (3, 5), 1, 11)
LENGTHS = jnp.array([5, 3, 1])
TARGET = jax.random.randint(jax.random.key(1), (3, 7), 1, 13)
DISTINCT = [name for name in VARIANTS if name not in ("luong_dot", "luong_concat")]
BOTH = [(variant, "lstm" if variant in ("qkv", "location") else "gru") for variant in DISTINCT]


def build(**changes):
    model = Seq2Seq(dataclasses.replace(CONFIG, **changes), 11, 13, source_length=8, target_length=9)
    return model, random_params(model, SOURCE, LENGTHS, TARGET)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def dense(x, layer):
    return x @ layer["kernel"] + layer.get("bias", 0.0)


def gru(state, x, p):
    """Cho et al. 2014, with the reset after the product."""
    h = state
    r, z = (sigmoid(dense(x, p["i" + gate]) + dense(h, p["h" + gate])) for gate in "rz")
    n = np.tanh(dense(x, p["in"]) + r * dense(h, p["hn"]))
    h = (1 - z) * n + z * h
    return h, h


def lstm(state, x, p):
    """Hochreiter & Schmidhuber 1997, with gates of forgetting."""
    c, h = state
    i, f, g, o = (dense(x, p["i" + gate]) + dense(h, p["h" + gate]) for gate in "ifgo")
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    h = sigmoid(o) * np.tanh(c)
    return (c, h), h


def coefficients(variant, p, x, h, i, token, s):
    """Scores of one target position against the source's, as Wikipedia's legend of its variants has them."""
    row = x[i] if i < len(x) else np.zeros(x.shape[1])
    matrix = lambda name: p[name]["kernel"].reshape(-1, 6)  # noqa: E731
    if variant == "dot":
        return h @ s
    if variant == "qkv":
        return (h @ matrix("to_key")) @ (s @ matrix("to_query")) / np.sqrt(6)
    if variant == "encoder_dot":
        return x @ row
    if variant == "encoder_qkv":
        return (x @ matrix("to_key")) @ (row @ matrix("to_query")) / np.sqrt(6)
    if variant == "location":
        return (np.concatenate([token, s]) @ p["kernel"] + p["bias"])[: len(h)]
    if variant == "luong_general":
        return np.array([s @ p["kernel"] @ one for one in h])
    pairs = np.array([np.concatenate([s, one]) for one in h])
    return (np.tanh(pairs @ p["hidden_kernel"] + p["hidden_bias"]) @ p["vector_kernel"])[:, 0]


def by_hand(config, params, source, target):
    """Logits and alignment of one sentence, token by token."""
    params = jax.tree.map(np.asarray, params["params"])
    cell, state = (gru, np.zeros(6)) if config.cell == "gru" else (lstm, (np.zeros(6), np.zeros(6)))
    x, h = params["embed"]["embedding"][source], []
    for word in x:
        state, out = cell(state, word, params["encoder"]["cell"])
        h.append(out)
    h, logits, alignment = np.array(h), [], []
    attending = params.get("coefficients", {})
    value = h @ attending["to_value"]["kernel"].reshape(6, 6) if "to_value" in attending else h
    for i, word in enumerate(params["embed_target"]["embedding"][target]):
        s = state[1] if isinstance(state, tuple) else state
        if config.attention == "fixed":
            w = np.eye(len(h))[-1]
        else:
            scores = np.exp(coefficients(config.attention, attending, x, h, i, word, s))
            w = scores / scores.sum()
        state, s = cell(state, np.concatenate([word, w @ value]), params["decoder"])
        logits.append(dense(s, params["head"]))
        alignment.append(np.pad(w, (0, 5 - len(w))))
    return np.array(logits), np.array(alignment)


@pytest.mark.parametrize(("variant", "cell"), once(BOTH, BOTH[:1] + BOTH[-2:]))
def test_equations_of_001_and_padding_that_is_as_if_it_were_not_there(variant, cell):
    model, params = build(attention=variant, cell=cell)
    logits, found = apply(model, params, SOURCE, LENGTHS, TARGET, mutable="attention")
    (weights,) = jax.tree.leaves(found["attention"])
    chex.assert_shape(weights, (3, 1, 7, 5))
    for row, length in enumerate(LENGTHS):
        expected = by_hand(model.config, params, SOURCE[row, :length], TARGET[row])
        chex.assert_trees_all_close((logits[row], weights[row, 0]), expected, atol=2e-5, rtol=1e-4)


DRAWS = [(0.5, 3), (0.5, 4), (0.5, 3), (0.0, 3)]


def trained(ratio, params, key=3, **changes):
    model, _ = build(teacher_forcing=ratio, **changes)
    rngs = {"dropout": jax.random.key(key)}
    return model, apply(model, params, SOURCE, LENGTHS, TARGET, train=True, rngs=rngs)


def test_teacher_forcing_of_1_is_the_parallel_pass():
    model, params = build()
    expected = apply(model, params, SOURCE, LENGTHS, TARGET)
    chex.assert_trees_all_equal(trained(1.0, params)[1], expected)
    half, _ = build(teacher_forcing=0.5)
    chex.assert_trees_all_equal(apply(half, params, SOURCE, LENGTHS, TARGET), expected)


@pytest.mark.more
def test_teacher_forcing_of_0_feeds_its_own_argmax():
    _, params = build()
    model, logits = trained(0.0, params)
    own = jnp.concatenate([TARGET[:, :1], jnp.argmax(logits, axis=-1)[:, :-1]], axis=1)
    chex.assert_trees_all_close(apply(model, params, SOURCE, LENGTHS, own), logits, atol=1e-5)
    caches, token = model.apply(params, SOURCE, LENGTHS, 7, method="start"), TARGET[:, :1]
    for i in range(1, 4):  # as greedy decoding does
        given, caches = model.apply(params, token, False, caches, method="step")
        token = jnp.argmax(given, axis=-1)
        np.testing.assert_array_equal(token[:, 0], own[:, i])


@pytest.mark.more
def test_teacher_forcing_between_draws_each_token():
    _, params = build()
    one, other, again, own = (np.asarray(trained(ratio, params, key)[1]) for ratio, key in DRAWS)
    np.testing.assert_array_equal(one, again)
    forced = np.asarray(apply(build()[0], params, SOURCE, LENGTHS, TARGET))
    same = [np.isclose(one, given, atol=1e-5).all(-1) for given in (forced, own, other)]
    assert not any(each.all() for each in same)


@pytest.mark.more
def test_parameters_of_the_drawing_of_001():
    """Embedding 300, 500 neurons, dictionaries of 9k and 10k, sentences of 100; a GRU has one bias more of its state.

    The linear layer has 5 million weights, about 10 times those of a recurrent one per 500 inputs, as its legend says.
    """
    config = dataclasses.replace(CONFIG, embedding=300, hidden=500)
    gru = lambda inputs: 3 * (inputs * 500 + 500) + 3 * 500 * 500 + 500  # noqa: E731
    lstm = lambda inputs: 4 * (inputs * 500 + 500 * 500 + 500)  # noqa: E731
    rest = 300 * 19_000 + 500 * 10_000 + 10_000
    coefficients = {
        "dot": 0,
        "qkv": 3 * 500 * 500,
        "encoder_dot": 0,
        "encoder_qkv": 2 * 300 * 500 + 500 * 500,
        "location": 800 * 100 + 100,
        "additive": 1000 * 500 + 500 + 500,
        "luong_dot": 0,
        "luong_general": 500 * 500,
        "luong_concat": 1000 * 500 + 500 + 500,
        "fixed": 0,
    }
    assert set(coefficients) == set(VARIANTS)
    for cell, recurrence in (("gru", gru), ("lstm", lstm)):
        for variant, more in coefficients.items():
            model = Seq2Seq(dataclasses.replace(config, attention=variant, cell=cell), 9_000, 10_000, 100, 100)
            shapes = jax.eval_shape(model.init, jax.random.key(0), SOURCE, LENGTHS, TARGET)
            assert count_parameters(shapes) == rest + recurrence(300) + recurrence(800) + more


@pytest.mark.more
def test_a_source_longer_than_the_layer_of_coefficients():
    model, params = build(attention="location")
    with pytest.raises(UsageError, match="Location-based attention was built for sequences of at most 8 tokens"):
        model.apply(params, jnp.ones((1, 9), int), jnp.array([9]), TARGET[:1])


@pytest.mark.more
def test_location_attention_of_many_heads_equals_its_definition():
    query, value = (jax.random.normal(jax.random.key(i), (2, n, 3, 4)) for i, n in enumerate((5, 6)))
    kernel, bias = jax.random.normal(jax.random.key(2), (4, 8)), jnp.arange(8.0) / 4
    found = [
        location_attention(query, value, kernel, bias, return_weights=True, implementation=name)
        for name in ("auto", "xla", "reference")
    ]
    scores = np.exp(np.einsum("btnh,hs->bnts", query, kernel)[..., :6] + np.asarray(bias[:6]))
    weights = scores / scores.sum(-1, keepdims=True)
    for one in found:
        expected = (np.einsum("bnts,bsnv->btnv", weights, value), weights)
        chex.assert_trees_all_close(one, expected, atol=1e-5)
