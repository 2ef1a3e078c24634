"""What must come out exactly, mechanism by mechanism, against independent arithmetic."""

import dataclasses
import inspect

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask, UnsupportedError, UsageError, mesh
from attention import reference as definitions
from attention.options import Options
from attention.score import attend
from attention.scores.pairwise import Neural
from tests.sizes import more, once

pytestmark = pytest.mark.usefixtures("x64")
SHAPE = (2, 9, 4, 6)


def arrays(*shapes, seed=0):
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    return tuple(jax.random.normal(k, s) for k, s in zip(keys, shapes, strict=True))


def unit(x):
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True)


def test_the_context_vector_of_001():
    """c_0 = w_00 v_0 + w_01 v_1 + …, (w_00, w_01, …) = softmax(q_0 k_0ᵀ, q_0 k_1ᵀ, …), with q, k, v from H."""
    hidden, first, w_query, w_key, w_value = arrays((5, 7), (1, 7), (7, 3), (7, 3), (7, 3))
    query, key, value = first @ w_query, hidden @ w_key, hidden @ w_value
    scores = np.exp([float(query[0] @ k) for k in key])
    context = sum(w * np.asarray(v) for w, v in zip(scores / scores.sum(), value, strict=True))
    heads = lambda x: x[None, :, None]  # noqa: E731
    found = attention.luong_attention(heads(query), heads(key), heads(value))
    np.testing.assert_allclose(found[0, 0, 0], context, rtol=0, atol=1e-12)


@pytest.mark.more
def test_the_context_of_001s_diagram_is_h_times_w():
    """Encoder vectors h are keys and values, 500 long, 100 of them; w = softmax(score), c = H w."""
    state, encoded = arrays((1, 500), (100, 500))
    scores = np.asarray(encoded @ state[0])
    weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    heads = lambda x: x[None, :, None]  # noqa: E731
    found = attention.luong_attention(heads(state), heads(encoded), heads(encoded))
    np.testing.assert_allclose(found[0, 0, 0], np.asarray(encoded).T @ weights, rtol=0, atol=1e-12)


def test_identity_turns_luong_general_into_luong_dot():
    query, key, value = arrays(SHAPE, SHAPE, SHAPE)
    general = attention.luong_attention(query, key, value, "general", jnp.eye(6))
    chex.assert_trees_all_close(general, attention.luong_attention(query, key, value), rtol=0, atol=1e-12)


def test_the_definitions_of_additive_and_concat_scores():
    query, key, kernel, bias, vector = arrays((6,), (6,), (12, 5), (5,), (5,))
    concat = definitions.luong_concat_score(query, key, kernel, bias, vector)
    additive = definitions.additive_score(query, key, kernel[:6], kernel[6:], bias, vector)
    layers = [(kernel, bias), (vector[:, None], jnp.zeros(1))]
    neural = definitions.neural_score(query, key, [], layers, jnp.tanh)
    chex.assert_trees_all_close((additive, concat), (neural, neural), rtol=0, atol=1e-12)


def _concat(query, key):
    """concat(q_i, k_j) of every pair, `(B, T, N, S, 2H)`: what the library never builds."""
    batch, length, heads, width = query.shape
    shape = (batch, length, heads, key.shape[1], width)
    queries = jnp.broadcast_to(query[:, :, :, None], shape)
    keys = jnp.broadcast_to(key.transpose(0, 2, 1, 3)[:, None], shape)
    return np.concatenate([queries, keys], axis=-1)


def test_additive_with_several_heads_is_neural_with_one_tanh_layer():
    query, key, value, kernel, bias, vector = arrays(SHAPE, SHAPE, SHAPE, (12, 5), (5,), (5,))
    additive = attention.additive_attention(query, key, value, kernel[:6], kernel[6:], bias, vector)
    layers = [(kernel, bias), (vector[:, None], jnp.array([0.7]))]
    neural = attention.neural_attention(query, key, value, layers, activation="tanh")
    concat = attention.luong_attention(query, key, value, "concat", kernel, bias, vector)
    chex.assert_trees_all_close((additive, concat), (neural, neural), rtol=0, atol=1e-12)


def test_neural_attention_is_the_papers_tensor_of_pairs():
    """DiGiugno, eq. 7 to 9: the whole tensor C of concatenations through the MLP, divided by √H."""
    query, key, value, w1, b1, w2, b2 = arrays(SHAPE, SHAPE, SHAPE, (12, 5), (5,), (5, 1), (1,))
    scores = np.maximum(_concat(query, key) @ np.asarray(w1) + np.asarray(b1), 0) @ np.asarray(w2) + np.asarray(b2)
    scores = scores[..., 0].transpose(0, 2, 1, 3) / np.sqrt(6)
    expected = jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.asarray(scores)), value)
    found = attention.neural_attention(query, key, value, [(w1, b1), (w2, b2)], scale=6**-0.5)
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("pairs", ["shared", "unique"])
def test_neural_attention_takes_the_arrays_of_each_head(pairs):
    score = Neural(3, (5,), per_head=True, pairs=pairs)
    params = attention.init(score, jax.random.key(1), 4, 6, length=9)
    layers = [(params[f"layer_{n}_kernel"], params[f"layer_{n}_bias"]) for n in range(2)]
    down = [(params[f"down_{side}_kernel"], params[f"down_{side}_bias"]) for side in ("query", "key")]
    given = arrays(SHAPE, SHAPE, SHAPE)
    found = attention.neural_attention(*given, layers, down, pairs=pairs)
    chex.assert_trees_all_equal(found, attend(score, params, *given))


@pytest.mark.parametrize("dim", [None, 3])
def test_scores_of_an_mlp_may_be_divided_by_the_root_of_the_heads_width(dim):
    """DiGiugno, eq. 9; without a normaliser outputs are proportional to scores."""
    plain, divided = (Neural(dim, (5,), scale=scale, normaliser="none") for scale in (False, True))
    params = attention.init(plain, jax.random.key(1), 4, 6)
    found = attend(divided, params, *arrays(SHAPE, SHAPE, SHAPE))
    chex.assert_trees_all_close(found * 6**0.5, attend(plain, params, *arrays(SHAPE, SHAPE, SHAPE)), atol=1e-6)


@pytest.mark.parametrize("implementation", ["reference", "xla", "chunked"])
def test_no_bias_is_a_bias_of_zero(implementation):
    query, key, value, down, w1, w2 = arrays(SHAPE, SHAPE, SHAPE, (6, 3), (6, 5), (5, 1))

    def attend(*biases):
        first, second, below = biases
        layers, projections = [(w1, first), (w2, second)], [(down, below), (down, below)]
        return attention.neural_attention(query, key, value, layers, projections, implementation=implementation)

    chex.assert_trees_all_close(
        attend(None, None, None), attend(jnp.zeros(5), jnp.zeros(1), jnp.zeros(3)), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("sigma", once([0.05, 0.3, 1.0], [0.3]))
def test_gaussian_of_unit_vectors_is_dot_product_at_one_over_sigma_squared(sigma):
    query, key, _ = arrays(SHAPE, SHAPE, SHAPE)
    found = attention.gaussian_attention(query, key, sigma=sigma)
    expected = attention.dot_product_attention(unit(query), unit(key), unit(key), scale=sigma**-2)
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.usefixtures("unchecked_shapes")
def test_sigma_may_be_a_number_of_numpy():
    query, key = (x.astype(jnp.bfloat16) for x in arrays(SHAPE, SHAPE))
    found = attention.gaussian_attention(query, key, sigma=np.float32(0.5), decay=np.int64(1), mask=Mask(causal=True))
    expected = attention.gaussian_attention(query, key, sigma=0.5, decay=1.0, mask=Mask(causal=True))
    chex.assert_trees_all_equal(found, expected)


def _by_distance(query, key, value, sigma):
    distance = jnp.sum((query[:, :, None] - key[:, None]) ** 2, axis=-1)
    return jnp.einsum("btsn,bsnh->btnh", jax.nn.softmax(-distance / (2 * sigma**2), axis=2), value)


@pytest.mark.more
@pytest.mark.parametrize("sigma", once([0.05, 0.3, 1.0], [0.3]))
def test_gaussian_of_any_vectors_is_its_distance_form(sigma):
    for dtype, tolerance in ((jnp.float64, 1e-10), (jnp.float32, 1e-4)):
        given = [x.astype(dtype) for x in arrays(SHAPE, SHAPE, SHAPE)]
        found = attention.gaussian_attention(*given, sigma=sigma, normalise=False)
        exact = _by_distance(*(x.astype(jnp.float64) for x in given), sigma)
        chex.assert_trees_all_close(found.astype(jnp.float64), exact, rtol=0, atol=tolerance)


def test_gaussian_as_printed_has_the_norm_and_zero_gradient_at_equal_vectors():
    query, key, value = arrays(SHAPE, SHAPE, SHAPE)
    distance = jnp.sqrt(jnp.sum((query[:, :, None] - key[:, None]) ** 2, axis=-1))
    expected = jnp.einsum("btsn,bsnh->btnh", jax.nn.softmax(-distance / 0.5, axis=2), value)
    options = {"sigma": 0.5, "squared": False, "normalise": False}
    chex.assert_trees_all_close(attention.gaussian_attention(query, key, value, **options), expected, atol=1e-12)
    one = query[:, :1]
    for implementation in ("xla", "reference"):
        options["implementation"] = implementation
        gradient = jax.jit(jax.grad(lambda q: attention.gaussian_attention(q, one, one, **options).sum()))(one)
        chex.assert_trees_all_equal(gradient, jnp.zeros_like(one))


def test_gaussian_decay_is_a_key_bias_under_a_causal_mask():
    query, key, _ = arrays(SHAPE, SHAPE, SHAPE)
    causal = Mask(causal=True)
    found = attention.gaussian_attention(query, key, decay=0.3, mask=causal)
    bias = (0.3 * jnp.arange(9.0))[None, None, None]
    expected = attention.gaussian_attention(query, key, bias=bias, mask=causal)
    literal = -0.3 * (jnp.arange(9.0)[:, None] - jnp.arange(9.0)[None])[None, None]
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-12)
    chex.assert_trees_all_close(
        found, attention.gaussian_attention(query, key, bias=literal, mask=causal), rtol=0, atol=1e-12
    )
    with pytest.raises(UnsupportedError, match="Gaussian attention needs a causal mask"):
        attention.gaussian_attention(query, key, decay=0.3)


def test_a_bias_of_the_keys_never_goes_to_cudnn(monkeypatch):
    """It would be rounded to bfloat16: at σ = 0.05 that is wrong by more than 1."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(mesh, "compute_capability", lambda: (9, 0))
    query, key, _ = (x.astype(jnp.bfloat16) for x in arrays((2, 8, 4, 8), (2, 8, 4, 8), SHAPE))
    options = {"sigma": 0.05, "normalise": False}
    exact = _by_distance(*(x.astype(jnp.float64) for x in (query, key, key)), 0.05)
    found = attention.gaussian_attention(query, key, **options).astype(jnp.float64)
    chex.assert_trees_all_close(found, exact, rtol=0, atol=0.05)
    with pytest.raises(UnsupportedError, match="no implementation 'cudnn'"):
        attention.gaussian_attention(query, key, implementation="cudnn", **options)


def test_each_head_has_its_sigma():
    query, key, _ = arrays(SHAPE, SHAPE, SHAPE)
    sigmas = [0.2, 0.5, 1.0, 2.0]
    found = attention.gaussian_attention(query, key, sigma=jnp.array(sigmas))
    for head, sigma in enumerate(sigmas):
        own = (slice(None), slice(None), slice(head, head + 1))
        expected = attention.gaussian_attention(query[own], key[own], sigma=sigma)
        chex.assert_trees_all_close(found[own], expected, rtol=0, atol=1e-10)


@pytest.mark.more
@pytest.mark.parametrize("implementation", ["xla", "chunked"])
@pytest.mark.parametrize("sigma", [0.05, more(jnp.full(4, 0.05))])
def test_sharp_gaussians_in_bfloat16(implementation, sigma):
    """Scores of up to 400: rounding queries once more after scaling would move them by more than 1."""
    query, key = (unit(x).astype(jnp.bfloat16) for x in arrays((1, 16, 4, 48), (1, 16, 4, 48)))

    def gradients(query, key, sigma, implementation):
        def scalar(q, k):
            out = attention.gaussian_attention(q, k, sigma=sigma, implementation=implementation)
            return jnp.sum(jnp.sin(out.astype(jnp.float64))), out

        slopes, out = jax.jit(jax.grad(scalar, argnums=(0, 1), has_aux=True))(query, key)
        return out, *slopes

    exact = gradients(
        *(unit(x.astype(jnp.float64)).astype(jnp.bfloat16).astype(jnp.float64) for x in (query, key)), 0.05, "xla"
    )
    found = gradients(query, key, sigma, implementation)
    for got, expected in zip(found, exact, strict=True):
        error = jnp.linalg.norm((got.astype(jnp.float64) - expected).ravel())
        assert error < 0.1 * jnp.linalg.norm(expected.ravel())


@pytest.mark.parametrize(("implementation", "products"), [("xla", 3), ("chunked", 4)])
def test_gaussian_scores_are_not_rounded_to_bfloat16_by_a_tpu(implementation, products):
    """q·k and its two gradients, and in tiles q·k once more; not of arrays that are bfloat16 already."""

    def exact(dtype, attend):
        loss = lambda q, k: attend(q, k, k, implementation=implementation).astype(jnp.float32).sum()  # noqa: E731
        text = str(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*(x.astype(dtype) for x in arrays(SHAPE, SHAPE))))
        return text.count("precision=(Precision.HIGHEST, Precision.HIGHEST)")

    assert exact(jnp.float32, attention.gaussian_attention) == products
    assert exact(jnp.bfloat16, attention.gaussian_attention) == 0
    assert exact(jnp.float32, attention.dot_product_attention) == 0


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
@pytest.mark.parametrize("causal", once([True, False], [True]))
def test_linear_is_its_quadratic_form(implementation, causal):
    query, key, value = arrays((2, 70, 4, 6), (2, 70, 4, 6), (2, 70, 4, 5))
    phi = lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))  # noqa: E731
    weights = np.einsum("btnh,bsnh->bnts", phi(query), phi(key))
    weights = np.tril(weights) if causal else weights
    expected = np.einsum("bnts,bsnh->btnh", weights / weights.sum(-1, keepdims=True), value)
    mask = Mask(causal=causal)
    found = attention.linear_attention(query, key, value, mask=mask, implementation=implementation)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


def test_fast_weights_of_1992_are_outer_products():
    """W = Σ v kᵀ, y = W q."""
    query, key, value = arrays(SHAPE, SHAPE, SHAPE)
    fast = np.einsum("bsnv,bsnk->bnvk", value, key)
    found = attention.linear_attention(query, key, value, feature="identity", normalise=False)
    np.testing.assert_allclose(found, np.einsum("bnvk,btnk->btnv", fast, query), rtol=0, atol=1e-10)


@pytest.mark.parametrize("implementation", once(["xla", "chunked"], ["chunked"]))
@pytest.mark.parametrize("causal", once([True, False], [True]))
def test_delta_is_the_update_step_by_step(implementation, causal):
    query, key, value, raw = arrays((1, 70, 1, 4), (1, 70, 1, 4), (1, 70, 1, 3), (1, 70, 1))
    strength = 2 * jax.nn.sigmoid(raw)  # above 1, what is stored changes its sign
    phi = lambda x: (y := np.asarray(jax.nn.silu(x))) / np.linalg.norm(y)  # noqa: E731
    fast, expected = np.zeros((3, 4)), []
    for t in range(70):
        k = phi(key[0, t, 0])
        fast = fast + float(strength[0, t, 0]) * np.outer(np.asarray(value[0, t, 0]) - fast @ k, k)
        expected.append(fast @ phi(query[0, t, 0]))
    if not causal:
        expected = [fast @ phi(query[0, t, 0]) for t in range(70)]
    mask = Mask(causal=causal)
    found = attention.delta_attention(query, key, value, strength, mask=mask, implementation=implementation)
    np.testing.assert_allclose(found[0, :, 0], expected, rtol=0, atol=1e-10)


def test_positional_attention_is_the_softmax_of_its_table():
    value, table = arrays(SHAPE, (4, 12, 12))
    expected = jnp.einsum("nts,bsnh->btnh", jax.nn.softmax(table[:, :9, :9]), value)
    chex.assert_trees_all_close(attention.positional_attention(value, table), expected, rtol=0, atol=1e-12)
    rows, columns = arrays((4, 12, 3), (4, 12, 3))
    factorised = attention.positional_attention(value, attention.factorised_table(rows, columns))
    table = jnp.einsum("nir,njr->nij", rows, columns)
    chex.assert_trees_all_close(factorised, attention.positional_attention(value, table), rtol=0, atol=1e-12)


def test_positional_attention_computes_one_softmax_for_a_batch():
    value, table = arrays((16, 9, 4, 6), (4, 9, 9))
    text = str(jax.make_jaxpr(attention.positional_attention)(value, table))
    assert "[16,4,9,9]" not in text


def neural(x, inputs, **options):
    layers = [(jnp.ones((inputs, 5)), None), (jnp.ones((5, 1)), None)]
    return attention.neural_attention(x, x, x, layers, **options)


def locate(query, value):
    return attention.location_attention(query, value, jnp.ones((6, 9)), jnp.ones(9))


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q: attention.luong_attention(q, q, q, "generel"), "Did you mean 'general'"),
        (lambda q: attention.luong_attention(q, q, q, "general"), "needs a kernel; it takes kernel"),
        (lambda q: attention.luong_attention(q, q, q, "dot", jnp.eye(6)), "'dot' score takes no kernel"),
        (
            lambda q: attention.luong_attention(q, q, q, "general", jnp.eye(5)),
            r"kernel must have the shape \(6, 6\) or",
        ),
        (lambda q: attention.gaussian_attention(q, q, sigma=0.0), "sigma must be above 0, but it is 0.0"),
        (lambda q: attention.gaussian_attention(q, q, sigma=jnp.array([1.0, 1, -1, 1])), "Each σ must be above 0"),
        (lambda q: attention.gaussian_attention(q, q, decay=-1.0), "decay must be at least 0, but it is -1.0"),
        (lambda q: attention.gaussian_attention(q, q, squared=False, implementation="cudnn"), "no implementation 'cud"),
        (lambda q: attention.positional_attention(q, jnp.zeros((4, 8, 8))), "at most 8 tokens, but this one has 9"),
        (lambda q: attention.positional_attention(q, jnp.zeros((3, 9, 9))), r"table must have the shape \(9, 9\) or"),
        (lambda q: attention.linear_attention(q, q, q, feature="identity"), "say normalise=False"),
        (lambda q: attention.delta_attention(q, q, q, jnp.ones((2, 9, 3))), r"must have the shape \(2, 9, 4\)"),
        (lambda q: attention.dot_product_attention(q, q, q, bias=jnp.ones((9, 9))), "rank 4, but its shape is"),
        (lambda q: attention.luong_attention(q, q, q, bias=jnp.ones((1, 3, 9, 9))), "does not broadcast to the scores"),
        (
            lambda q: attention.gaussian_attention(q, q, mask=Mask(key_lengths=jnp.ones(3, int))),
            r"the shape \(2,\), but",
        ),
        (
            lambda q: attention.positional_attention(q, jnp.zeros((12, 12)), mask=Mask(query_offset=8)),
            "this one has 17",
        ),
        *(
            (lambda q, other=other: locate(q, jnp.ones(other)), "query and value of the same batch and heads")
            for other in ((3, 9, 4, 6), (1, 9, 4, 6), (2, 9, 3, 6), (2, 9))
        ),
        (lambda q: attention.neural_attention(q, q, q, []), "needs layers"),
        (lambda q: attention.align_values(q, jnp.eye(9), jnp.ones(12)), r"bias must have the shape \(9,\)"),
        (lambda q: attention.neural_attention(q, q, q, [(jnp.ones((12, 1)), None)]), "at least two layers"),
        (lambda q: neural(q, 11), r"layer 0 must have the shape \(12, any\)"),
    ],
)
def test_mistakes_are_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call(jnp.ones(SHAPE))


@pytest.mark.parametrize("implementation", ["xla", "chunked"])
def test_delta_solves_its_triangular_systems_without_lapack(implementation):
    """Two of LAPACK's batched solves at once can wait for each other forever on a machine of two CPUs."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, 70, 2, 4))

    def loss(query, key, value):
        strength = jnp.full((1, 70, 2), 0.5)
        out = attention.delta_attention(
            query, key, value, strength, mask=Mask(causal=True), implementation=implementation
        )
        return jnp.sum(out**2)

    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(query, key, value).as_text()
    assert "stablehlo.dot_general" in text
    assert "triangular" not in text
    assert "lapack" not in text


OF_MAPS = ("channel_attention", "spatial_attention")


@pytest.mark.parametrize(
    "name", [name for name in attention.__all__ if name.endswith("_attention") and name not in OF_MAPS]
)
def test_every_public_function_shows_its_options(name):
    for function in (getattr(attention, name), attend):
        shown = inspect.signature(function).parameters
        assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in shown.values())
        for option in dataclasses.fields(Options):
            assert shown[option.name].kind is inspect.Parameter.KEYWORD_ONLY
            assert shown[option.name].default == option.default
