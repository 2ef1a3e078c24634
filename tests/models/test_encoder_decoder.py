"""The encoder-decoder Transformer: padding, causality, caches of both attentions, parameters, wrong options."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.layers.positions import sinusoids, sinusoids_in_halves
from tests.models.small import apply, random_params, small
from tests.sizes import once
from train.state import count_parameters

CONFIG = small(
    EncoderDecoderConfig,
    **{"depth": 1, "width": 8, "mlp": 12, "norm": "post", "positions": "sinusoidal", "activation": "relu"},
    shared_embeddings=False,
)
MARIAN = dataclasses.replace(
    CONFIG,
    depth=6,
    decoder_depth=6,
    width=512,
    heads=8,
    mlp=2048,
    positions="sinusoidal_halves",
    activation="swish",
    shared_embeddings=True,
)
SOURCE = jax.random.randint(jax.random.key(0), (3, 6), 1, 11)
LENGTHS = jnp.array([6, 3, 1])
TARGET = jax.random.randint(jax.random.key(1), (3, 5), 1, 13)


def build(vocabularies=(11, 13), lengths=(6, 7), **changes):
    model = EncoderDecoder(dataclasses.replace(CONFIG, **changes), *vocabularies, *lengths)
    return model, random_params(model, SOURCE[:, :4], LENGTHS, TARGET[:, :4])


@pytest.mark.parametrize("spec", once(["dot_product|super", "linear|delta"], ["dot_product|super"]))
def test_a_padded_batch_gives_what_single_sentences_give(spec):
    model, params = build(attention=spec.split("|")[0], decoder_attention=spec, cross_attention=spec)
    whole = apply(model, params, SOURCE, LENGTHS, TARGET)
    alone = apply(model, params, SOURCE[1:2, :3], LENGTHS[1:2], TARGET[1:2])
    chex.assert_trees_all_close(whole[1:2], alone, atol=2e-5, rtol=1e-4)
    other = apply(model, params, SOURCE.at[1, 3:].set(10).at[2, 1:].set(9), LENGTHS, TARGET)
    chex.assert_trees_all_close(whole, other, atol=1e-6)


def count(config, vocabularies, lengths):
    model = EncoderDecoder(config, *vocabularies, *lengths)
    ones = jnp.ones((1, 4), int)
    shapes = jax.eval_shape(model.init, jax.random.key(0), ones, jnp.array([4]), ones)
    return count_parameters(shapes), shapes["params"]


@pytest.mark.more
def test_parameters_of_marian():
    """opus-mt's architecture: published counts add 524,288 for two tables of 512 sinusoids, and no bias of the output.

    Embeddings, then 6 blocks of attention, MLP and 2 norms, then 6 with one attention and one norm more.
    """
    attention, mlp, norm = 4 * (512 * 512 + 512), 512 * 2048 + 2048 + 2048 * 512 + 512, 2 * 512
    blocks = 6 * (attention + mlp + 2 * norm) + 6 * (2 * attention + mlp + 3 * norm)
    assert 58_101 * 512 + blocks + 524_288 == 74_410_496
    assert count(MARIAN, (58_101, 58_101), (512, 512))[0] == 58_101 * 512 + blocks
    with_bias = dataclasses.replace(MARIAN, output_bias=True)
    assert count(with_bias, (58_101, 58_101), (512, 512))[0] == 58_101 * 513 + blocks
    apart = dataclasses.replace(MARIAN, shared_embeddings=False, tied_output=False)
    assert count(apart, (100, 200), (512, 512))[0] == (100 + 2 * 200) * 512 + blocks


@pytest.mark.more
def test_the_tied_output_may_have_a_bias():
    (model, params), (plain, _) = build(output_bias=True), build()
    bias = params["params"]["head_bias"]
    found = apply(model, params, SOURCE, LENGTHS, TARGET)
    del params["params"]["head_bias"]
    without = apply(plain, params, SOURCE, LENGTHS, TARGET)
    chex.assert_trees_all_close(found, without + bias[None, None], atol=1e-5)


def test_sinusoids_in_halves_are_the_same_numbers():
    plain, halves = sinusoids(5, 8, first=2), sinusoids_in_halves(5, 8, first=2)
    np.testing.assert_array_equal(halves, np.concatenate([plain[:, ::2], plain[:, 1::2]], axis=1))


def test_each_layer_of_either_side_has_its_implementation():
    config = dataclasses.replace(CONFIG, decoder_depth=3, implementation="reference | chunked(8, 16)")
    stacks = (config.attention_layers(7, stack=stack) for stack in config.STACKS)
    first, *rest = ([layer.implementation for layer in stack] for stack in stacks)
    assert first == ["reference"]
    assert rest == [["reference", "chunked(8, 16)", "chunked(8, 16)"]] * 2


def test_caches_longer_than_learned_positions_are_refused():
    model, _ = build(lengths=(5, 7), positions="learned")
    with pytest.raises(UsageError, match="8 tokens were asked for, but positions were learned for 7"):
        model.init_caches(1, 8)
