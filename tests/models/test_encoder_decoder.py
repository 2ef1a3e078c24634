"""The encoder-decoder Transformer: padding, causality, caches of both attentions, parameters, wrong options."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import UsageError
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from tests.models.small import apply, random_params, small
from tests.sizes import once

CONFIG = small(
    EncoderDecoderConfig,
    **{"depth": 1, "width": 8, "mlp": 12, "norm": "post", "positions": "sinusoidal", "activation": "relu"},
    shared_embeddings=False,
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


@pytest.mark.more
def test_the_tied_output_may_have_a_bias():
    (model, params), (plain, _) = build(output_bias=True), build()
    bias = params["params"]["head_bias"]
    found = apply(model, params, SOURCE, LENGTHS, TARGET)
    del params["params"]["head_bias"]
    without = apply(plain, params, SOURCE, LENGTHS, TARGET)
    chex.assert_trees_all_close(found, without + bias[None, None], atol=1e-5)


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
