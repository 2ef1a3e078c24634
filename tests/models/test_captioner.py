"""The image-to-text Transformer: every word depends on the whole image and the words before, with caches too."""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import pytest

from models.captioner import CaptionerConfig
from models.encoder_decoder import EncoderDecoderConfig
from tests.models.small import apply, random_params
from tests.sizes import once
from train.state import count_parameters

SHAPE, VOCABULARY, LENGTH = (8, 12, 1), 11, 5
IMAGES = jax.random.uniform(jax.random.key(0), (3, *SHAPE))
TARGET = jax.random.randint(jax.random.key(1), (3, LENGTH), 1, VOCABULARY)
ENCODERS = ["vit(patch=4)", "cnn(stages=2, width=4)"]
CONFIG = CaptionerConfig(width=8, heads=2, mlp=12, depth=1, decoder_depth=2, dropout=0.0, attention_dropout=0.0)


def build(**changes):
    model = dataclasses.replace(CONFIG, **changes).build(SHAPE, VOCABULARY, LENGTH)
    return model, random_params(model, IMAGES, None, TARGET)


@pytest.mark.parametrize("encoder", once(ENCODERS, ENCODERS[:1]))
def test_a_word_depends_on_the_words_before_and_on_every_pixel(encoder):
    model, params = build(encoder=encoder)

    @jax.jit
    @jax.grad
    def gradient_of(images, step):
        return model.apply(params, images, None, TARGET)[0, step, 2]

    for step in (0, LENGTH - 1):
        gradient = gradient_of(IMAGES, step)
        assert jnp.all(jnp.abs(gradient[0]).sum(-1) > 0)
        assert not jnp.any(gradient[1:])
    logits = apply(model, params, IMAGES, None, TARGET)
    changed = apply(model, params, IMAGES, None, TARGET.at[:, 3].set(TARGET[:, 3] % 10 + 1))
    chex.assert_trees_all_close(logits[:, :3], changed[:, :3], atol=1e-6)
    assert jnp.all(jnp.abs(logits[:, 3] - changed[:, 3]).max(-1) > 1e-4)


def test_parameters_are_those_of_an_encoder_decoder_with_patches_for_words():
    _, params = build(encoder="vit(patch=4)")
    translating = EncoderDecoderConfig(
        **{field.name: getattr(CONFIG, field.name) for field in dataclasses.fields(CONFIG) if field.name not in NEW},
        shared_embeddings=False,
    )
    other = translating.build(7, VOCABULARY, math.prod((2, 3)), LENGTH)
    counted = count_parameters(random_params(other, TARGET % 7, jnp.full(3, LENGTH), TARGET))
    assert count_parameters(params) == counted - 7 * 8 + (16 + 1) * 8


NEW = ("name", "encoder")
