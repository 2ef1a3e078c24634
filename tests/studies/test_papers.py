"""What the papers say that algebra or counting decides; `docs/ledger.md` cites these."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from analysis.layer_operations import analytic
from analysis.pictures.projection import noisy_circle, project
from attention import dot_product_attention, gaussian_attention
from models.layers.projections import MlpProjection
from models.mechanisms import resolve
from models.text_classifier import TextClassifier
from models.vit import ViT
from train import loading
from train.mechanisms import layer_parameters
from train.state import count_parameters


def normal(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))


def layer(spec, width, length, heads=1):
    return layer_parameters(resolve(spec, 1)[0], width, heads, length)


def test_wikipedias_transposed_form_does_not_multiply():
    """Its matrices are 300 x 100, so W_k X^T is not defined; W_k^T X^T gives what its row-wise form does."""
    words, token = normal(0, 4, 300) / 10, normal(1, 1, 300) / 10
    query, key, value = (normal(seed, 300, 100) for seed in (2, 3, 4))
    with pytest.raises(TypeError, match="contracting dimension"):
        key @ words.T
    rows = jax.nn.softmax((token @ query) @ (words @ key).T) @ (words @ value)
    columns = (words @ value).T @ jax.nn.softmax((key.T @ words.T).T @ (token @ query).T, axis=0)
    np.testing.assert_allclose(columns.T, rows, rtol=1e-5, atol=1e-5)


def test_projected_dot_products_let_all_pairs_of_elements_meet():
    """DiGiugno §1.2 and eq. 2 have only elements of one index interact; that is before the projections."""
    query, key = normal(0, 6, 4), normal(1, 6, 4)
    score = lambda x, z: (x @ query) @ (z @ key)  # noqa: E731
    mixed = jax.jacfwd(jax.grad(score), argnums=1)(normal(2, 6), normal(3, 6))
    np.testing.assert_allclose(mixed, query @ key.T, rtol=1e-4, atol=1e-5)
    assert np.abs(mixed[~np.eye(6, dtype=bool)]).min() > 1e-3


def test_outputs_lie_in_the_convex_hull_of_the_values():
    """Wikipedia: an output reaches no further in any direction than the values do."""
    query, key, value = normal(0, 1, 5, 1, 3), normal(1, 1, 7, 1, 3), normal(2, 1, 7, 1, 3)
    out = dot_product_attention(query, key, value)[0, :, 0]
    directions = normal(3, 3, 200)
    assert np.all((out @ directions).max(axis=0) <= (value[0, :, 0] @ directions).max(axis=0) + 1e-5)


def test_queries_and_keys_play_different_parts():
    """Wikipedia calls their roles symmetric; scores are symmetric only if both have the same matrix."""
    x, query, key = normal(0, 5, 8), normal(1, 8, 4), normal(2, 8, 4)
    scores = (x @ query) @ (x @ key).T
    assert np.abs(scores - scores.T).max() > 1
    same = (x @ query) @ (x @ query).T
    np.testing.assert_allclose(same, same.T, rtol=1e-5)


def test_soft_weights_change_with_the_input_and_learned_ones_stay():
    """Wikipedia: soft weights exist only in the forward pass; with the same projections, they depend on the input."""
    kernels = [normal(seed, 8, 8) for seed in (0, 1)]

    def weights(seed):
        words = normal(seed, 1, 5, 1, 8)
        query, key = (words @ kernel for kernel in kernels)
        return dot_product_attention(query, key, words, return_weights=True)[1]

    one, other, again = weights(2), weights(3), weights(2)
    assert np.abs(one - other).max() > 0.1
    np.testing.assert_array_equal(one, again)


def test_unscaled_scores_of_a_hundred_numbers_choose_one_key():
    """Wikipedia: the variance of q·k is the width, and 1/√d takes it away."""
    query, key = normal(0, 500, 100), normal(1, 32, 100)
    scores = query @ key.T
    assert np.var(scores) == pytest.approx(100, rel=0.15)
    largest = lambda scale: float(jax.nn.softmax(scores * scale).max(axis=-1).mean())  # noqa: E731
    assert largest(1.0) > 0.8
    assert largest(0.1) < 0.25


def test_layer_norm_does_not_give_the_norm_1():
    """Sanger derives ‖q‖ = ‖k‖ = 1 from it, but it gives √D, before projections that change the norm again."""
    normalised = nn.LayerNorm(use_bias=False, use_scale=False).apply({}, normal(0, 50, 64))
    np.testing.assert_allclose(np.linalg.norm(normalised, axis=-1), 8.0, rtol=1e-3)
    assert np.std(np.linalg.norm(normalised @ normal(1, 64, 64), axis=-1)) > 1


def test_values_of_a_narrow_head_cannot_be_had_from_its_keys():
    """Sanger: if W_k has an inverse, a later layer can make up for any W_v; a head's W_k has no inverse."""
    wide, values = normal(0, 8, 8), normal(1, 8, 8)
    x = normal(2, 5, 8)
    np.testing.assert_allclose(x @ wide @ np.linalg.inv(wide) @ values, x @ values, rtol=1e-2, atol=1e-3)
    narrow = normal(0, 8, 2)
    unseen = np.linalg.svd(narrow.T)[2][-1]  # a direction that keys do not show
    np.testing.assert_allclose(unseen @ narrow, 0, atol=1e-5)
    assert np.abs(unseen @ normal(1, 8, 2)).max() > 0.1


def test_projection_attention_is_not_cubic():
    """Sanger §4: outputs are means of the keys, so they cannot grow faster than these."""
    points = normal(0, 1, 9, 1, 3)
    once, scaled = (gaussian_attention(x, x, normalise=False) for x in (points, 4 * points))
    assert np.abs(scaled - 4**3 * once).max() > 1
    assert np.linalg.norm(scaled, axis=-1).max() <= 4 * np.linalg.norm(points, axis=-1).max()


@pytest.mark.more
def test_repeated_projection_collapses_to_a_point():
    """Sanger §4: the residual prevents this."""
    points = noisy_circle(24)
    spread = [float(np.ptp(step, axis=0).max()) for step in project(points, sigma=0.7, steps=40)]
    assert spread[0] > 2
    assert spread[-1] < 1e-3
    assert np.all(np.diff(spread) <= 1e-6)


def test_two_linear_layers_around_a_layer_norm_are_not_linear():
    """Zhang §4.4 calls them linear."""
    projection = MlpProjection((4,), relu=False)
    x = normal(0, 3, 4)
    params = projection.init(jax.random.key(1), x)
    at = lambda x: projection.apply(params, x) - projection.apply(params, 0 * x)  # noqa: E731
    assert np.abs(at(2 * x) - 2 * at(x)).max() > 0.1


def test_super_saves_a_projection_as_long_as_the_text_is_no_longer_than_the_width():
    """Hosseini's Remark 3, which counts no biases, also holds with biases, but not for longer texts."""
    width = 64
    saved = lambda length: layer("dot_product", width, length) - layer("super", width, length)  # noqa: E731
    assert all(saved(length) >= width**2 for length in (1, width // 2, width))
    assert saved(width + 1) < width**2


def test_super_takes_more_operations_than_optimised_on_long_texts():
    """Hosseini's Fig. 2 and 4 draw the two as one; W^A is a product of ℓ²d, the projection of the keys one of ℓd²."""
    width = 64
    more = lambda length: analytic("super", length, width, 1) - analytic("optimised", length, width, 1)  # noqa: E731
    assert more(width // 2) < 0 < more(2 * width)


def test_what_one_layer_costs_more_fades_with_depth():
    """DiGiugno §4.3 is about the operations of all layers' attention."""
    neural, dot = (analytic(spec, 1024, 512, 8) for spec in ("neural(dim=None)", "dot_product"))
    shares = [(neural + (depth - 1) * dot) / (depth * dot) for depth in (2, 8, 32)]
    assert shares[0] > shares[1] > shares[2] > 1


def model_of(config, **changes):
    return dataclasses.replace(loading.resolve(f"configs/{config}.py", {})[0].model, scan=True, **changes)


def vit(config, classes, side, channels, length, **changes):
    model = ViT(model_of(config, **changes), classes, length)
    return count_parameters(jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, side, side, channels))))


def classifier(config, words, classes, length):
    model = TextClassifier(model_of(config), words, classes, length)
    tokens = jnp.zeros((1, length), int)
    return count_parameters(jax.eval_shape(model.init, jax.random.key(0), tokens, jnp.array([length])))


@pytest.mark.more
def test_sizes_of_hosseinis_models():
    """Hosseini prints 300K, 650K, 2.6M and 60M; the last two rows of Table 7 differ by nine alignments."""
    assert vit("vit_mnist", 10, 32, 1, 64) == 276_874
    assert vit("vit_imagenet", 1000, 112, 3, 196) == 57_772_264
    assert classifier("classify_imdb", 20_000, 2, 32) == 648_190
    assert classifier("classify_amazon", 20_000, 5, 64) == 1_361_149
    assert classifier("classify_amazon", 40_000, 5, 64) == 2_641_149
    assert 9 * (layer("super", 804, 196, 12) - layer("efficient", 804, 196, 12)) == 347_508


@pytest.mark.parametrize(
    ("spec", "width", "layers", "more"), [("mlp_roberta", 768, 12, 63_756_288), ("mlp_marian", 512, 18, 42_633_216)]
)
def test_zhangs_models_grow(spec, width, layers, more):
    """RoBERTa has 12 attentions and Marian 18, of which 6 are cross-attention."""
    assert layers * (layer(spec, width, 8) - layer("dot_product", width, 8)) == more
