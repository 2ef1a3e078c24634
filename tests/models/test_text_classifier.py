"""The classifier of texts: its parameters, its pooling, its padding."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from models.text_classifier import TextClassifier, TextClassifierConfig, mean_of_real
from tests.models.small import apply, random_params, small
from tests.sizes import more, once
from train.state import count_parameters

CONFIG = small(
    TextClassifierConfig,
    name="text_classifier",
    depth=1,
    mlp=24,
    norm="post",
    norm_epsilon=1e-6,
    activation="relu",
    pool="mean",
    head_hidden=20,
)
TOKENS = jax.random.randint(jax.random.key(0), (3, 8), 1, 11)
LENGTHS = jnp.array([8, 5, 1])


def build(**changes):
    model = TextClassifier(dataclasses.replace(CONFIG, **changes), vocabulary=11, classes=3, length=8)
    return model, random_params(model, TOKENS, LENGTHS)


@pytest.mark.parametrize(
    ("attention", "layer"), [("dot_product", 4_224), ("optimised", 3_168), ("efficient", 2_112), ("super", 3_168)]
)
def test_parameters_of_hosseinis_imdb_models(attention, layer):
    """Table 8's attention layers in the Keras example's model: 650K in all, the paper says."""
    config = dataclasses.replace(CONFIG, attention=attention, width=32, heads=4, mlp=32)
    model = TextClassifier(config, vocabulary=20_000, classes=2, length=32)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32), int), jnp.array([32]))
    embeddings, mlp, norms, head = 20_000 * 32 + 32 * 32, 2 * (32 * 32 + 32), 4 * 32, 32 * 20 + 20 + 20 * 2 + 2
    assert count_parameters(params["params"]["block_0"]["attention"]) == layer
    assert count_parameters(params) == embeddings + layer + mlp + norms + head
    assert 645_000 < count_parameters(params) < 650_000


@pytest.mark.parametrize(
    ("attention", "layer"), [("dot_product", 16_640), ("optimised", 12_480), ("efficient", 8_320), ("super", 12_480)]
)
def test_attention_layers_of_hosseinis_amazon_models(attention, layer):
    config = dataclasses.replace(CONFIG, attention=attention, depth=3, width=64, heads=4)
    model = TextClassifier(config, vocabulary=20, classes=5, length=64)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 64), int), jnp.array([64]))["params"]
    assert [count_parameters(params[f"block_{i}"]["attention"]) for i in range(3)] == [layer] * 3


@pytest.mark.parametrize("pool", ["mean", more("class_token")])
@pytest.mark.parametrize(
    "attention", once(["dot_product", "optimised", "efficient", "super", "neural", "linear"], ["super"])
)
def test_padding_after_a_text_is_as_if_it_were_not_there(attention, pool):
    model, params = build(attention=attention, pool=pool)
    logits = apply(model, params, TOKENS, LENGTHS)
    alone = apply(model, params, TOKENS[1:2, :5], LENGTHS[1:2])
    np.testing.assert_allclose(logits[1:2], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("pool", [more("mean"), "class_token"])
@pytest.mark.parametrize("changes", [more({}), {"attention": "super"}, more({"norm": "pre", "positions": "rotary"})])
def test_nothing_of_padding_reaches_a_logit_or_a_gradient(changes, pool):
    model, params = build(pool=pool, **changes)
    padding = jnp.arange(8)[None] >= LENGTHS[:, None]
    tokens = jnp.where(padding, 10, TOKENS % 9 + 1)

    def loss(params):
        logits = apply(model, params, tokens, LENGTHS)
        return jnp.sum(jnp.sin(logits)), logits

    differentiate = jax.jit(jax.grad(loss, has_aux=True))
    gradient, logits = differentiate(params)
    params["params"]["embed"]["embedding"] = params["params"]["embed"]["embedding"].at[10].set(jnp.nan)
    spoilt_gradient, spoilt_logits = differentiate(params)
    chex.assert_trees_all_equal(spoilt_logits, logits)
    chex.assert_trees_all_equal(spoilt_gradient, gradient)
    chex.assert_tree_all_finite(gradient)
    assert np.all(gradient["params"]["embed"]["embedding"][10] == 0)
    assert np.all(np.abs(gradient["params"]["embed"]["embedding"][np.unique(tokens[~padding])]).max(-1) > 0)


@pytest.mark.parametrize("pool", once(["mean", "class_token"], ["mean"]))
def test_a_text_without_tokens_has_finite_logits_and_gradients(pool):
    model, params = build(pool=pool)
    empty = jnp.zeros(3, int)
    loss = lambda params: jnp.sum(apply(model, params, TOKENS, empty) ** 2)  # noqa: E731
    chex.assert_tree_all_finite(jax.jit(jax.grad(loss))(params))


def test_the_mean_is_over_real_tokens():
    x = jax.random.normal(jax.random.key(0), (3, 8, 4))
    expected = [np.asarray(x)[row, :length].mean(0) for row, length in enumerate(np.asarray(LENGTHS))]
    np.testing.assert_allclose(mean_of_real(x, LENGTHS), expected, rtol=1e-5)
    np.testing.assert_array_equal(mean_of_real(x, jnp.array([8, 0, 0]))[1:], 0)


def test_the_mean_forgets_the_order_without_positions_and_a_class_token_reads_all():
    model, params = build(positions="none")
    full = jnp.array([8, 8, 8])
    logits = apply(model, params, TOKENS, full)
    np.testing.assert_allclose(apply(model, params, TOKENS[:, ::-1], full), logits, atol=1e-5)
    model, params = build(pool="class_token")
    changed = TOKENS.at[:, 7].set(TOKENS[:, 7] % 10 + 1)
    assert np.all(np.abs(apply(model, params, changed, full) - apply(model, params, TOKENS, full)).max(-1) > 1e-4)


def test_the_head_is_one_layer_or_two():
    two, one = (build(head_hidden=units)[1]["params"] for units in (20, 0))
    assert set(two) - set(one) == {"head_hidden"}
    chex.assert_shape(one["head"]["kernel"], (16, 3))
    chex.assert_shape(two["head"]["kernel"], (20, 3))


@pytest.mark.more
@pytest.mark.parametrize("place", once(["embedding_dropout", "dropout", "attention_dropout"], ["embedding_dropout"]))
def test_dropout_is_off_in_evaluation_and_keyed_in_training(place):
    model, params = build(**{place: 0.3})
    train = lambda seed: apply(model, params, TOKENS, LENGTHS, train=True, rngs={"dropout": jax.random.key(seed)})  # noqa: E731
    chex.assert_trees_all_equal(apply(model, params, TOKENS, LENGTHS), apply(build()[0], params, TOKENS, LENGTHS))
    chex.assert_trees_all_equal(train(0), train(0))
    assert np.abs(train(0) - train(1)).max() > 1e-3


def test_mistakes_are_one_sentence():
    model, params = build(positions="none", attention="super")
    with pytest.raises(UsageError, match=r"8.*9|9.*8"):
        apply(model, params, jnp.ones((1, 9), int), jnp.array([9]))


@pytest.mark.parametrize("pool", once(["mean", "class_token"], ["mean"]))
def test_analytic_flops_equal_xlas_count(pool):
    model, params = build(pool=pool, width=128, mlp=256, heads=4, implementation="xla", positions="none")
    counted = jax.jit(model.apply).lower(params, TOKENS[:1], LENGTHS[:1]).compile().cost_analysis()["flops"]
    assert 0.95 < model.config.cost(11, 3, 8).flops / counted <= 1.0
