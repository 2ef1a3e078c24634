"""Every row against its paper's own form, which knows nothing of `Score.pair` or of the normalisers."""

import dataclasses
import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

import attention
from attention import Mask, UsageError, reference
from attention.activations import ACTIVATIONS
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.normaliser import NORMALISERS, normaliser_of
from attention.parameters import Parameter
from attention.recurrences.linear import Delta, LinearAttention
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from attention.score import Score
from attention.scores.differential import Differential, DifferentialV2
from attention.scores.dot import DotProduct, ScalableSoftmax
from attention.scores.forgetting import Forgetting
from attention.scores.path import Path
from attention.scores.positional import Positional
from attention.scores.sparse.deepseek import DeepSeekSparse
from attention.scores.sparse.native import NativeSparse
from models.mechanisms import MECHANISMS
from tests.attention.cases import CASES, assert_close
from tests.sizes import once

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
ROOT = WIDTH**-0.5


def own(w, head):
    return {name: x[head] if len(x) == HEADS else x for name, x in w.items()}


def neural(activation="relu", scale=1.0, unique=False, per_head=False):
    def score(w, q, k, i, j, n):
        w = own(w, n) if per_head else w
        at = (i, j) if unique else ()
        layers = [(w[f"layer_{x}_kernel"][at], w[f"layer_{x}_bias"][at]) for x in range(3)]
        down = [(w[f"down_{s}_kernel"], w[f"down_{s}_bias"]) for s in ("query", "key") if "down_query_kernel" in w]
        return scale * reference.neural_score(q, k, down, layers, ACTIVATIONS[activation])

    return score


def additive(w, q, k, i, j, n):
    w = own(w, n)
    query_kernel, key_kernel = jnp.split(w["hidden_kernel"], 2)
    return reference.additive_score(q, k, query_kernel, key_kernel, w["hidden_bias"], w["vector_kernel"][:, 0])


def gaussian(sigma=1.0, squared=True, normalise=True, decay=0.0):
    def score(w, q, k, i, j, n):
        q, k = (reference.unit(x) if normalise else x for x in (q, k))
        return reference.gaussian_score(q, k, jnp.asarray(sigma), squared) - decay * (i - j)

    return score


def positional(w, q, k, i, j, n):
    table = jnp.einsum("...ir,...jr->...ij", w["rows"], w["columns"]) if "rows" in w else w["table"]
    return table[n, i, j] if table.ndim == 3 else table[i, j]


NEAR, BEHIND = np.array([0, 1, 2, 2, 2, 2, 3, 3, 3]), np.array([0, 1, 2, 3, 4, 4, 5, 5, 6])  # T5's, by hand


def relative(w, q, k, i, j, n):
    both = jnp.asarray(NEAR)[abs(i - j)] + 4 * (j > i)
    behind = jnp.asarray(BEHIND)[jnp.maximum(i - j, 0)]
    return q @ k * ROOT, w["bucket_bias"][n][both], w["bucket_bias"][n][behind]


SCORES = {
    "dot_product": lambda w, q, k, i, j, n: q @ k * ROOT,
    "neural": neural(),
    "neural undivided": neural("gelu", ROOT),
    "neural per head": neural(per_head=True),
    "neural unique": neural(unique=True),
    "additive": additive,
    "additive per head": additive,
    "luong dot": lambda w, q, k, i, j, n: q @ k,
    "luong general": lambda w, q, k, i, j, n: reference.luong_score(q, k, w["kernel"]),
    "luong concat": lambda w, q, k, i, j, n: reference.luong_concat_score(
        q, k, w["hidden_kernel"], w["hidden_bias"], w["vector_kernel"][:, 0]
    ),
    "gaussian": gaussian(),
    "gaussian sharp": gaussian(0.3),
    "gaussian as it is": gaussian(0.8, normalise=False),
    "gaussian unsquared": gaussian(0.5, squared=False),
    "gaussian decay": gaussian(decay=0.2),
    "positional": positional,
    "positional shared": positional,
    "positional factorised": positional,
    "location": lambda w, q, k, i, j, n: q @ w["rows"][j] + w["bias"][j],
    "relative": lambda *pair: relative(*pair)[0] + relative(*pair)[1],
    "relative behind": lambda *pair: relative(*pair)[0] + relative(*pair)[2],
    "relative scaled": lambda *pair: relative(*pair)[0] / ROOT * 0.7 + relative(*pair)[1],
}
KEPT = ["dot_product", "neural unique", "additive", "gaussian unsquared", "location"]


def all_scores(name, w, query, key):
    """`(B, N, T, S)`."""

    steps = jnp.arange(LENGTH)

    def head(n, query, key):
        pair = lambda q, k, i, j: SCORES[name](w, q, k, i, j, n)  # noqa: E731
        return jax.vmap(jax.vmap(pair, (None, 0, None, 0)), (0, None, 0, None))(query, key, steps, steps)

    return jnp.stack([jax.vmap(functools.partial(head, n))(query[:, :, n], key[:, :, n]) for n in range(HEADS)], 1)


def assert_is(name, by_hand, mask, *implementations):
    """The output and all gradients of a case are those of an equation of weights, queries, keys and values."""
    arrays, w = inputs(), CASES[name].weights()
    direction = jax.random.normal(jax.random.key(11), arrays[2].shape, jnp.float64)

    def scalar(*given):
        out = by_hand(*given)
        return jnp.sum(out * direction), out

    (_, out), gradients = jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2, 3), has_aux=True))(w, *arrays)
    for implementation in implementations:
        found = CASES[name].outcome(implementation, arrays, w, mask, direction=direction)
        chex.assert_trees_all_close(found, (out, gradients), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", once(SCORES, KEPT))
def test_equals_the_paper_in_output_and_all_gradients(name):
    mask = CASES[name].mask(Mask(key_lengths=jnp.array([LENGTH - 3, LENGTH])))  # not causal: keys ahead count too

    def by_hand(w, query, key, value):
        scores = all_scores(name, w, query, key)
        allowed = jnp.broadcast_to(mask.materialise(LENGTH, LENGTH, 4), scores.shape)
        weights = jax.vmap(jax.vmap(reference.head_weights))(scores, jnp.zeros_like(scores), allowed)
        return jnp.einsum("bnts,bsnh->btnh", weights, value)

    assert_is(name, by_hand, mask, "reference")


def _broken(parts):
    """The last key takes its part of the stick first."""
    left, weights = 1.0, np.zeros_like(parts)
    for j in reversed(range(len(parts))):
        weights[j], left = left * parts[j], left * (1 - parts[j])
    return weights


def _weights_by_hand(name, scores, allowed):
    """One row, in NumPy."""
    if not allowed.any():
        return np.zeros_like(scores)
    s, count, weights = scores[allowed], allowed.sum(), np.zeros_like(scores)
    weights[allowed] = {
        "softmax": lambda: scipy.special.softmax(s),
        "sink": lambda: scipy.special.softmax([*s, 0.0])[:-1],
        "sink(learned=True)": lambda: scipy.special.softmax([*s, 0.4])[:-1],
        "sigmoid": lambda: scipy.special.expit(s - np.log(count)),
        "softpick": lambda: np.maximum(np.exp(s) - 1, 0) / (np.abs(np.exp(s) - 1).sum() + 1e-8 * np.exp(s.max())),
        "relu_squared": lambda: np.maximum(s, 0) ** 2 / count,
        "sum": lambda: s / s.sum(),
        "none": lambda: s,
        "hard": lambda: np.arange(len(s)) == s.argmax(),
        "stick_breaking": lambda: _broken(scipy.special.expit(s)),
        "blocks": lambda: scipy.special.softmax(s),  # one block has all keys; `scores/test_blocks.py` has more
    }[name]()
    return weights


@pytest.mark.parametrize("name", [*NORMALISERS, "sink(learned=True)"])
def test_a_normaliser_is_what_it_says(name):
    query, key, value = inputs(seed=1)  # whose scores sum to nearly 0 in no row
    dense = jax.random.bernoulli(jax.random.key(9), 0.7, (2, HEADS, LENGTH, LENGTH)).at[:, :, 2].set(False)
    params = {"sink": jnp.full(HEADS, 0.4)} if "learned" in name else {}
    score = DotProduct(normaliser=name)
    scores = np.einsum("btnh,bsnh->bnts", query, key) * ROOT
    weights = np.empty_like(scores)
    for at in itertools.product(range(2), range(HEADS), range(LENGTH)):
        weights[at] = _weights_by_hand(name, scores[at], np.asarray(dense[at]))
    expected = np.einsum("bnts,bsnh->btnh", weights, value)
    for implementation in ("reference", "xla", *(("chunked(4, 3)",) if normaliser_of(name).in_tiles else ())):
        out = attention.attend(score, params, query, key, value, mask=dense, implementation=implementation)
        chex.assert_trees_all_close(out, expected, rtol=0, atol=1e-10)


def test_hard_attention_learns_by_the_gradient_of_the_softmax():
    arrays = inputs()
    found, soft = (CASES[name].outcome("xla", arrays, {})[1][1:3] for name in ("hard", "dot_product"))
    chex.assert_trees_all_close(found, soft, atol=1e-12)


@pytest.mark.more
def test_sampled_keys_are_drawn_from_the_softmax():
    query, key, value = inputs()
    score = DotProduct(normaliser="hard(sampled=True)")

    def drawn(seed):
        options = {"dropout_key": jax.random.key(seed), "return_weights": True}
        return attention.attend(score, {}, query, key, value, **options)[1]

    weights = jax.vmap(drawn)(jnp.arange(4000))
    chex.assert_trees_all_equal(weights.sum(-1), jnp.ones(weights.shape[:-1]))
    _, soft = attention.dot_product_attention(query, key, value, return_weights=True)
    assert np.abs(weights.mean(0) - soft).max() < 5 * 0.5 / np.sqrt(4000)


# With tests of their own.
ELSEWHERE = (DotProduct, ScalableSoftmax, Forgetting, NativeSparse, DeepSeekSparse, Differential, DifferentialV2)
ELSEWHERE += (Path, LinearAttention, Delta, LogLinear, Mamba3)


def test_every_row_has_its_papers_own_form():
    rows = {name: type(row.score) for name, row in MECHANISMS.items()}
    for name, kind in rows.items():
        known = kind in ELSEWHERE or kind.oracle or {name, name.replace("_", " ")} & {*SCORES}
        assert known, f"Write the equation of {name!r} from its source in {kind.__name__}.oracle."


def test_forgetting_attention_adds_the_gates_between():
    """F_i − F_j summed gate by gate, with its gradients."""

    def by_hand(w, query, key, value):
        gates = jax.nn.sigmoid(key.reshape(2, LENGTH, -1) @ w["forget_kernel"] + w["forget_bias"][None, None])
        out = []
        for i in range(LENGTH):
            faded = [jnp.log(gates[:, j + 1 : i + 1]).sum(1) for j in range(i + 1)]
            scores = jnp.einsum("bnh,bsnh->bsn", query[:, i], key[:, : i + 1]) * ROOT + jnp.stack(faded, 1)
            out.append(jnp.einsum("bsn,bsnh->bnh", jax.nn.softmax(scores, 1), value[:, : i + 1]))
        return jnp.stack(out, 1)

    assert_is("forgetting", by_hand, Mask(causal=True), "reference", "chunked")


def test_the_scalable_softmax_sharpens_with_the_number_of_keys():
    """z ↦ softmax(s log(n) z) of the n allowed keys (Nakanishi 2025), with its gradients."""
    mask = Mask(causal=True, key_lengths=jnp.array([4, LENGTH]))

    def by_hand(w, query, key, value):
        out = []
        for b, i in itertools.product(range(2), range(LENGTH)):
            n = min(i + 1, (4, LENGTH)[b])
            z = jnp.einsum("nh,snh->ns", query[b, i], key[b, :n]) * ROOT
            weights = jax.nn.softmax(w["length_scale"][:, None] * np.log(n) * z, -1)
            out.append(jnp.einsum("ns,snh->nh", weights, value[b, :n]))
        return jnp.stack(out).reshape(value.shape)

    assert_is("scalable_softmax", by_hand, mask, "reference", "xla", "chunked")


def test_differential_attention_is_the_difference_of_two():
    """In the third layer."""
    initial = 0.8 - 0.6 * np.exp(-0.6)
    query, key, value = inputs()
    w = CASES["differential"].weights()
    halves = [(query[..., a:b], key[..., a:b]) for a, b in ((0, 3), (3, 6))]
    first, second = (
        np.einsum("bnts,bsnh->btnh", scipy.special.softmax(np.einsum("btnh,bsnh->bnts", q, k) / 3**0.5, -1), value)
        for q, k in halves
    )
    a, b = np.exp(np.sum(np.asarray(w["query_vector"] * w["key_vector"]), -1))
    out = first - (a - b + initial) * second
    expected = (1 - initial) * out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-5) * w["scale"][None, None, None]
    found = attention.attend(Differential(), w, query, key, value, layer=2)
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


def test_the_second_differential_attention_is_that_of_the_published_code():
    """Of 2N heads of queries, which attend in pairs to the same keys, every other is subtracted: `attn[:, :, 1::2]`."""
    arrays = inputs()
    query, key, value = map(np.asarray, arrays)
    w = CASES["differential_v2"].weights()
    x = key.reshape(2, LENGTH, -1)
    queries = np.stack([query, np.einsum("btd,dnh->btnh", x, w["second_kernel"])], 3).reshape(2, LENGTH, -1, WIDTH)
    keys, values = (np.repeat(part, 2, 2) for part in (key, value))
    weights = scipy.special.softmax(np.einsum("btnh,bsnh->bnts", queries, keys) * ROOT, -1)
    attn = np.einsum("bnts,bsnh->btnh", weights, values)
    expected = attn[:, :, 0::2] - scipy.special.expit(x @ w["share_kernel"])[..., None] * attn[:, :, 1::2]
    for implementation in ("reference", "xla", "chunked"):
        out = CASES["differential_v2"].call(w, *arrays, implementation=implementation)
        chex.assert_trees_all_close(out, expected, rtol=0, atol=1e-10)


def test_every_sequence_draws_its_own_keys():
    value, table = inputs()[2], {"table": jnp.zeros((HEADS, LENGTH, LENGTH))}
    options = {"dropout_key": jax.random.key(0), "return_weights": True, "implementation": "xla"}
    score = Positional(normaliser="hard(sampled=True)")
    _, weights = attention.attend(score, table, value, None, value, **options)
    assert np.any(weights[0] != weights[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: attention.attend("alibi", {}, q, None, q), "Alibi reads keys; give them"),
        (lambda q: attention.attend("neural", {}, q, q, None), "keys of Attention by pairs cannot be its values"),
        (lambda q: attention.attend("cosine", {}, q, q, q), "needs the arrays log_scale; attention.init makes them"),
        (lambda q: Forgetting(normaliser="sigmoid"), "has a normaliser of softmax, hard, blocks, not sigmoid"),
        (lambda q: DotProduct(normaliser="softmx"), r"Unknown normaliser 'softmx'\. Did you mean 'softmax'"),
        (lambda q: attention.attend("alibi", {}, q, q, q, mask=jnp.ones((1, 1, 3, 3), bool)), "does not broadcast"),
        (
            lambda q: attention.attend("luong_dot", {}, q, q, q, mask=q),
            "or a boolean array, .* not an array of float64",
        ),
        (lambda q: attention.attend("differential", {}, q[..., :5], q[..., :5], q), "cannot be 5 wide"),
        (lambda q: Parameter((3,), jnp.ones, ("keys", "heads")), "in this order, not"),
    ],
)
def test_mistakes_are_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call(inputs()[0])


@dataclasses.dataclass(frozen=True)
class OfTheLayer(DotProduct):
    def prepare_query(self, params, query, tokens):
        return query * (1 + tokens.layer) / tokens.depth

    def prepare_key(self, params, key, tokens):
        return key * tokens.depth


def test_what_prepares_queries_and_keys_knows_the_layer():
    query, key, value = inputs(5, LENGTH, 2)
    found = attention.attend(OfTheLayer(), {}, query, key, value, layer=2, depth=4)
    assert_close(found, attention.dot_product_attention(3 * query, key, value), 1e-6)


@dataclasses.dataclass(frozen=True)
class OnlyPair(Score):
    """Dot products with a scale of the layer, and a table: `pair` alone."""

    def parameters(self, sizes):
        return {"table": Parameter((sizes.length, sizes.length), jax.nn.initializers.ones, ("queries", "keys"))}

    def pair(self, params, query, key, at):
        return (1 + at.layer) / at.depth * query @ key + params["table"]


@pytest.mark.more
def test_pair_alone_is_enough_for_tiles_with_gradients_of_all_parameters():
    """In all forms, where the layer is traced."""
    arrays, start = inputs(5, LENGTH, 2), LENGTH - 5
    mask, params = Mask(causal=True, query_offset=start), {"table": jax.random.normal(jax.random.key(3), (LENGTH,) * 2)}

    def by_hand(layer, params, *arrays):
        return attention.dot_product_attention(*arrays, scale=0.75, bias=params["table"][None, None, start:], mask=mask)

    def outcome(attend):
        scalar = lambda *given: jnp.sum(jnp.sin(attend(*given)))  # noqa: E731
        return jax.jit(jax.value_and_grad(scalar, argnums=(1, 2, 3, 4)))(2, params, *arrays)

    def in_form(name):
        options = {"mask": mask, "depth": 4, "implementation": name}
        return lambda layer, *given: attention.attend(OnlyPair(), *given, layer=layer, **options)

    expected = outcome(by_hand)
    for name in ("reference", "xla", "chunked(2, 4)"):
        chex.assert_trees_all_close(outcome(in_form(name)), expected, rtol=0, atol=1e-10)
