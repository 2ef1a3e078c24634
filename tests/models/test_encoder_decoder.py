"""The encoder-decoder Transformer: padding, causality, caches of both attentions, parameters, wrong options."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.layers.multi_head import MultiHeadAttention
from models.layers.positions import sinusoids, sinusoids_in_halves
from models.mechanisms import MECHANISMS, resolve
from tests.models.small import apply, random_params, small
from tests.sizes import more, once
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


@pytest.mark.parametrize(
    "spec", once(["dot_product|super", "linear|delta", "positional|neural"], ["dot_product|super"])
)
def test_a_padded_batch_gives_what_single_sentences_give(spec):
    model, params = build(attention=spec.split("|")[0], decoder_attention=spec, cross_attention=spec)
    whole = apply(model, params, SOURCE, LENGTHS, TARGET)
    alone = apply(model, params, SOURCE[1:2, :3], LENGTHS[1:2], TARGET[1:2])
    chex.assert_trees_all_close(whole[1:2], alone, atol=2e-5, rtol=1e-4)
    other = apply(model, params, SOURCE.at[1, 3:].set(10).at[2, 1:].set(9), LENGTHS, TARGET)
    chex.assert_trees_all_close(whole, other, atol=1e-6)


@pytest.mark.parametrize("changes", [{}, more({"norm": "pre", "positions": "learned", "scale_embeddings": False})])
def test_logits_depend_on_the_target_before_and_on_the_whole_source(changes):
    model, params = build(**changes)
    logits = apply(model, params, SOURCE, LENGTHS, TARGET)
    changed = apply(model, params, SOURCE, LENGTHS, TARGET.at[:, 3].set(TARGET[:, 3] % 12 + 1))
    chex.assert_trees_all_close(logits[:, :3], changed[:, :3], atol=1e-6)
    assert np.all(np.abs(logits - changed)[:, 3:].max(axis=(0, 2)) > 1e-4)
    changed = apply(model, params, SOURCE.at[0, 5].set(SOURCE[0, 5] % 10 + 1), LENGTHS, TARGET)
    assert np.all(np.abs(logits - changed)[0].max(axis=-1) > 1e-4)


CROSS = [name for name, row in MECHANISMS.items() if row.cross]


@pytest.mark.parametrize("cross", once(CROSS, ["efficient", "additive", "positional", "linear"]))
def test_every_row_attends_to_a_prepared_source_as_to_the_source(cross):
    layer = MultiHeadAttention(resolve(cross, 1)[0], heads=2, length=6)
    x, source = (jax.random.normal(jax.random.key(i), (3, n, 8)) for i, n in enumerate((5, 6)))
    params = random_params(layer, x, source)

    @jax.jit
    def run(params, x, source):
        prepared = layer.apply(params, source, 8, LENGTHS, method="prepare")
        assert (prepared.value is None) == (cross in ("efficient", "gaussian"))  # each fact once
        whole = layer.apply(params, x, source, mask=Mask(key_lengths=LENGTHS))
        last = Mask(key_lengths=LENGTHS, query_offset=4)
        return layer.apply(params, x[:, 4:], prepared, mask=last), whole[:, 4:]

    chex.assert_trees_all_close(*run(params, x, source), atol=2e-5, rtol=1e-4)


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
def test_outputs_are_tied_to_the_targets_embeddings_and_may_have_a_bias():
    model, params = build(output_bias=True)
    plain, _ = build()
    bias = params["params"]["head_bias"]
    rest = {"params": {n: p for n, p in params["params"].items() if n != "head_bias"}}
    without = apply(plain, rest, SOURCE, LENGTHS, TARGET)
    with_bias = apply(model, params, SOURCE, LENGTHS, TARGET)
    chex.assert_trees_all_close(with_bias, without + bias[None, None], atol=1e-5)
    shared, params = build((13, 13), shared_embeddings=True)
    assert "embed_target" not in params["params"]
    assert apply(shared, params, SOURCE, LENGTHS, TARGET).shape == (3, 5, 13)


def test_sinusoids_in_halves_are_the_same_numbers():
    plain, halves = sinusoids(5, 8, first=2), sinusoids_in_halves(5, 8, first=2)
    np.testing.assert_array_equal(halves, np.concatenate([plain[:, ::2], plain[:, 1::2]], axis=1))


def test_each_layer_of_either_side_has_its_implementation():
    config = dataclasses.replace(CONFIG, decoder_depth=3, implementation="reference | chunked(8, 16)")
    stacks = (config.attention_layers(7, stack=stack) for stack in config.STACKS)
    first, *rest = ([layer.implementation for layer in stack] for stack in stacks)
    assert first == ["reference"]
    assert rest == [["reference", "chunked(8, 16)", "chunked(8, 16)"]] * 2
    counted = dataclasses.replace(CONFIG, decoder_depth=3, implementation="cycle(reference*2|chunked(8,16))")
    assert counted.implementations == ("reference", "reference", "chunked(8, 16)")


def test_caches_longer_than_learned_positions_are_refused():
    model, _ = build(lengths=(5, 7), positions="learned")
    with pytest.raises(UsageError, match="8 tokens were asked for, but positions were learned for 7"):
        model.init_caches(1, 8)
