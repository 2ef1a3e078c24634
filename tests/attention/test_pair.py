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
from attention.parameters import Parameter, Sizes
from attention.recurrences.linear import Delta, LinearAttention
from attention.score import Score
from attention.scores.differential import Differential, DifferentialV2
from attention.scores.dot import DotProduct, ScalableSoftmax
from attention.scores.forgetting import Forgetting
from attention.scores.pairwise import Neural
from attention.scores.path import Path
from attention.scores.positional import Positional
from attention.scores.relative import Relative
from attention.scores.sparse.deepseek import DeepSeekSparse
from attention.scores.sparse.native import NativeSparse
from models.mechanisms import MECHANISMS
from tests.attention.cases import CASES
from tests.sizes import more, once

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]
ROOT = WIDTH**-0.5


def own(w, head):
    return {name: x[head] if len(x) == HEADS else x for name, x in w.items()}


def dot(scale=ROOT):
    return lambda w, q, k, i, j, n: q @ k * scale


def neural(activation="relu", scale=1.0, unique=False, per_head=False):
    def score(w, q, k, i, j, n):
        w = own(w, n) if per_head else w
        at = (i, j) if unique else ()
        layers = [(w[f"kernel_{x}"][at], w[f"bias_{x}"][at]) for x in range(3)]
        down = [(w[f"down_kernel_{s}"], w[f"down_bias_{s}"]) for s in ("query", "key") if "down_kernel_query" in w]
        return scale * reference.neural_score(q, k, down, layers, ACTIVATIONS[activation])

    return score


def additive(w, q, k, i, j, n):
    w = own(w, n)
    return reference.additive_score(q, k, w["query_kernel"], w["key_kernel"], w["hidden_bias"], w["vector"])


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
    "dot_product": dot(),
    "dot_product scale": dot(0.7),
    "neural": neural(),
    "neural undivided": neural("gelu", 0.5),
    "neural per head": neural(per_head=True),
    "neural unique": neural(unique=True),
    "neural unique per head": neural(unique=True, per_head=True),
    "additive": additive,
    "additive per head": additive,
    "luong dot": dot(1.0),
    "luong general": lambda w, q, k, i, j, n: reference.luong_score(q, k, w["kernel"]),
    "luong general per head": lambda w, q, k, i, j, n: reference.luong_score(q, k, w["kernel"][n]),
    "luong concat": lambda w, q, k, i, j, n: reference.luong_concat_score(
        q, k, w["kernel"], w["hidden_bias"], w["vector"]
    ),
    "gaussian": gaussian(),
    "gaussian sharp": gaussian(0.3),
    "gaussian as it is": gaussian(0.8, normalise=False),
    "gaussian unsquared": gaussian(0.5, squared=False),
    "gaussian decay": gaussian(decay=0.2),
    "positional": positional,
    "positional shared": positional,
    "positional factorised": positional,
    "location": lambda w, q, k, i, j, n: q @ w["kernel"][:, j] + w["kernel_bias"][j],
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


@pytest.mark.parametrize("name", once(SCORES, KEPT))
def test_equals_the_paper_in_output_and_all_gradients(name):
    lengths = Mask(key_lengths=jnp.array([LENGTH - 3, LENGTH]))  # not causal: keys ahead count too
    arrays, w, mask = inputs(), CASES[name].weights(), CASES[name].mask(lengths)
    direction = jax.random.normal(jax.random.key(11), arrays[2].shape, jnp.float64)

    def by_hand(w, query, key, value):
        scores = all_scores(name, w, query, key)
        allowed = jnp.broadcast_to(mask.materialise(LENGTH, LENGTH, 4), scores.shape)
        weights = jax.vmap(jax.vmap(reference.head_weights))(scores, jnp.zeros_like(scores), allowed)
        out = jnp.einsum("bnts,bsnh->btnh", weights, value)
        return jnp.sum(out * direction), out

    (_, out), gradients = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1, 2, 3), has_aux=True))(w, *arrays)
    chex.assert_trees_all_close(
        CASES[name].outcome("reference", arrays, w, mask, direction=direction), (out, gradients), rtol=0, atol=1e-10
    )


@pytest.mark.more
@pytest.mark.parametrize("name", ["linear", "linear relu", "fast weights", "delta"])
def test_a_running_state_is_the_papers(name):
    query, key, value = inputs()
    w, allowed = CASES[name].weights(), jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    feature = {"linear": reference.elu_feature, "linear relu": jax.nn.relu, "fast weights": lambda x: x}.get(name)

    def head(query, key, value):
        if name == "delta":
            return reference.delta_head(query, key, value, jax.nn.sigmoid(key @ w["strength"]), 1 + jnp.arange(LENGTH))
        return reference.linear_head(query, key, value, allowed, feature, name != "fast weights")

    expected = jax.vmap(jax.vmap(head, (1, 1, 1), 1))(query, key, value)
    for implementation in ("reference", "xla", "chunked"):
        out = CASES[name].call(w, query, key, value, mask=Mask(causal=True), implementation=implementation)
        chex.assert_trees_all_close(out, expected, rtol=0, atol=1e-10)


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
def test_an_mlp_chooses_one_key_by_itself():
    arrays, score, sizes = inputs(), Neural(normaliser="hard"), Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    params = {n: jax.random.normal(jax.random.key(1), p.shape) for n, p in score.arrays(sizes).items()}
    found, expected = (attention.attend(score, params, *arrays, implementation=name) for name in ("auto", "reference"))
    chex.assert_trees_all_close(found, expected, atol=1e-12)


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
ELSEWHERE += (Path, LinearAttention, Delta)


@pytest.mark.parametrize("row", MECHANISMS)
def test_every_row_has_its_papers_own_form(row):
    kind = type(MECHANISMS[row].score)
    if kind not in ELSEWHERE and not kind.oracle:
        names = {row, row.replace("_", " ")}
        assert names & {*SCORES}, f"Write the equation of {row!r} from its source in {kind.__name__}.oracle."


def test_forgetting_attention_adds_the_gates_between():
    """F_i − F_j summed gate by gate, with its gradients."""
    arrays, w, mask = inputs(), CASES["forgetting"].weights(), Mask(causal=True)
    direction = jax.random.normal(jax.random.key(11), arrays[2].shape, jnp.float64)

    def by_hand(w, query, key, value):
        gates = jax.nn.sigmoid(key.reshape(2, LENGTH, -1) @ w["forget_kernel"] + w["forget_bias"][None, None])
        out = []
        for i in range(LENGTH):
            faded = [jnp.log(gates[:, j + 1 : i + 1]).sum(1) for j in range(i + 1)]
            scores = jnp.einsum("bnh,bsnh->bsn", query[:, i], key[:, : i + 1]) * ROOT + jnp.stack(faded, 1)
            out.append(jnp.einsum("bsn,bsnh->bnh", jax.nn.softmax(scores, 1), value[:, : i + 1]))
        return jnp.sum(jnp.stack(out, 1) * direction), jnp.stack(out, 1)

    (_, out), gradients = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1, 2, 3), has_aux=True))(w, *arrays)
    for implementation in ("reference", "chunked"):
        found = CASES["forgetting"].outcome(implementation, arrays, w, mask, direction=direction)
        chex.assert_trees_all_close(found, (out, gradients), rtol=0, atol=1e-10)


def test_forgetting_attention_takes_the_normalisers_that_drop_what_a_row_shares():
    for name in ("softmax", "hard", "blocks"):
        Forgetting(normaliser=name)
    message = "Forgetting attention has a normaliser of softmax, hard, blocks, not sigmoid"
    with pytest.raises(UsageError, match=message):
        Forgetting(normaliser="sigmoid")


@pytest.mark.parametrize("causal", [True, False])
def test_the_scalable_softmax_sharpens_with_the_number_of_keys(causal):
    """z ↦ softmax(s log(n) z) of the n allowed keys (Nakanishi 2025), with its gradients."""
    arrays, w, mask = (
        inputs(),
        CASES["scalable_softmax"].weights(),
        Mask(causal=causal, key_lengths=jnp.array([4, LENGTH])),
    )
    direction = jax.random.normal(jax.random.key(11), arrays[2].shape, jnp.float64)

    def by_hand(w, query, key, value):
        out = []
        for b, i in itertools.product(range(2), range(LENGTH)):
            n = min(i + 1 if causal else LENGTH, (4, LENGTH)[b])
            z = jnp.einsum("nh,snh->ns", query[b, i], key[b, :n]) * ROOT
            weights = jax.nn.softmax(w["length_scale"][:, None] * np.log(n) * z, -1)
            out.append(jnp.einsum("ns,snh->nh", weights, value[b, :n]))
        out = jnp.stack(out).reshape(value.shape)
        return jnp.sum(out * direction), out

    (_, out), gradients = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1, 2, 3), has_aux=True))(w, *arrays)
    for implementation in ("reference", "xla", "chunked"):
        found = CASES["scalable_softmax"].outcome(implementation, arrays, w, mask, direction=direction)
        chex.assert_trees_all_close(found, (out, gradients), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("given", "initial"), [(0, 0.8 - 0.6 * np.exp(-0.6)), more(0.3, 0.3)])
def test_differential_attention_is_the_difference_of_two(given, initial):
    """In the third layer."""
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
    found = attention.attend(Differential(given), w, query, key, value, layer=2)
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


def test_buckets_are_those_of_t5():
    transformers = pytest.importorskip("transformers.models.t5.modeling_t5", reason="needs transformers and PyTorch")
    torch = pytest.importorskip("torch")
    offsets = np.arange(-300, 301)
    for ahead in (True, False):
        theirs = transformers.T5Attention._relative_position_bucket(torch.tensor(offsets), ahead, 32, 128)
        ours = Relative(32, 128, ahead).bucket(jnp.asarray(offsets))
        chex.assert_trees_all_equal(np.asarray(ours), theirs.numpy())


def test_a_boolean_array_is_a_mask():
    query, key, value = inputs()
    allowed = jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool))
    run = functools.partial(attention.dot_product_attention, query, key, value)
    chex.assert_trees_all_close(run(mask=allowed), run(mask=Mask(causal=True)), atol=1e-12)
    with pytest.raises(UsageError, match="or a boolean array, True where a query may attend, not an array of float64"):
        run(mask=jnp.zeros((1, 1, LENGTH, LENGTH)))


@pytest.mark.more
def test_a_table_over_keys_alone_limits_the_keys_alone():
    query, _, value = inputs(LENGTH + 2)
    out = attention.location_attention(query, value, jnp.ones((WIDTH, LENGTH)), jnp.ones(LENGTH))
    chex.assert_trees_all_close(out, jnp.broadcast_to(value.mean(1, keepdims=True), out.shape), atol=1e-12)


@pytest.mark.more
def test_a_gate_that_closes_has_a_gradient():
    query, key, value = inputs()
    params = CASES["gated_linear"].weights()
    params |= {"forget_bias": jnp.full_like(params["forget_bias"], -2000.0)}
    gradient = jax.grad(lambda w: jnp.sum(CASES["gated_linear"].call(w, query, key, value)))(params)
    chex.assert_tree_all_finite(gradient)


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
        (lambda q: attention.attend("alibe", {}, q, q, q), "Unknown score 'alibe'. Did you mean 'alibi'"),
        (lambda q: attention.attend("alibi", {}, q, q, q, mask=jnp.ones((1, 1, 3, 3), bool)), "does not broadcast"),
        (lambda q: attention.attend("differential", {}, q[..., :5], q[..., :5], q), "cannot be 5 wide"),
        (lambda q: Parameter((3,), jnp.ones, ("keys", "heads")), "in this order, not"),
    ],
)
def test_mistakes_are_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call(inputs()[0])


@dataclasses.dataclass(frozen=True)
class OnlyPair(Score):
    """Dot products with a scale of the layer, less a learned slope times the distance, and a table: `pair` alone."""

    def parameters(self, sizes):
        one = lambda key, shape, dtype: jnp.ones(shape, dtype)  # noqa: E731
        return {
            "slope": Parameter((sizes.heads,), one, ("heads",)),
            "table": Parameter((sizes.length, sizes.length), one, ("queries", "keys")),
        }

    def pair(self, params, query, key, at):
        scale = (1 + at.layer) / at.depth
        return scale * query @ key - params["slope"] * abs(at.query - at.key) + params["table"]


@pytest.mark.more
def test_pair_alone_is_enough_for_tiles_with_gradients_of_all_parameters():
    """In all forms, where the layer is traced."""
    arrays, start = inputs(5, LENGTH, 2), LENGTH - 5
    mask, steps = Mask(causal=True, query_offset=start), jnp.arange(LENGTH)
    draw = np.random.default_rng(3).standard_normal
    params = {"slope": jnp.asarray(draw(HEADS)), "table": jnp.asarray(draw((LENGTH, LENGTH)))}

    def by_hand(params, *arrays):
        far = abs(steps[start:, None] - steps[None])[None]
        bias = params["table"][None, start:] - params["slope"][:, None, None] * far
        return attention.dot_product_attention(*arrays, scale=0.75, bias=bias[None], mask=mask)

    def outcome(attend):
        scalar = lambda *given: jnp.sum(jnp.sin(attend(*given)))  # noqa: E731
        return jax.jit(jax.value_and_grad(scalar, argnums=(0, 1, 2, 3)))(params, *arrays)

    expected = outcome(by_hand)
    for name in ("reference", "xla", "chunked", "chunked(2, 4)"):
        of_layer = jax.jit(
            lambda layer, name=name: outcome(
                lambda *given: attention.attend(
                    OnlyPair(), *given, mask=mask, layer=layer, depth=4, implementation=name
                )
            )
        )
        chex.assert_trees_all_close(of_layer(2), expected, rtol=0, atol=1e-10)
