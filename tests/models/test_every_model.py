"""What holds for every model: dropout, bfloat16, decoding token by token, and that mistakes are one sentence."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from attention import UsageError
from models.captioner import CaptionerConfig
from models.cnn import CNNConfig
from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPTConfig
from models.masked_lm import MaskedLMConfig
from models.seq2seq import Seq2SeqConfig
from models.text_classifier import TextClassifierConfig
from models.vit import ViTConfig
from tests.models.small import apply, in_parts, random_params, small
from tests.sizes import once

KEYS = jax.random.split(jax.random.key(0), 4)
IMAGES, MAPS = jax.random.normal(KEYS[0], (3, 8, 8, 3)), jax.random.uniform(KEYS[1], (3, 8, 12, 1))
TOKENS, TARGET = jax.random.randint(KEYS[2], (3, 8), 1, 11), jax.random.randint(KEYS[3], (3, 5), 1, 13)
LENGTHS, SHAPE = jnp.array([8, 5, 1]), MAPS.shape[1:]
CROSS = {
    "width": 8,
    "depth": 1,
    "decoder_depth": 2,
    "decoder_attention": "dot_product",
    "cross_attention": "dot_product",
}
RECURRENT = {"attention": "additive", "embedding": 4, "hidden": 6, "dropout": 0.0}
# The config, the sizes of the data, and a batch.
FAMILIES = {
    "vit": (small(ViTConfig, attention="super", pool="class_token"), ((8, 8, 3), 5), (IMAGES,)),
    "cnn": (CNNConfig(stages=2, width=8, groups=2, dropout=0.0), ((8, 8, 3), 5), (IMAGES,)),
    "gpt": (small(GPTConfig), (11, 9), (TOKENS,)),
    "masked_lm": (small(MaskedLMConfig, norm="post", depth=1), (11, 9), (TOKENS,)),
    "text_classifier": (small(TextClassifierConfig, norm="post", depth=1), (11, 3, 8), (TOKENS, LENGTHS)),
    "encoder_decoder": (
        small(EncoderDecoderConfig, norm="post", positions="sinusoidal", shared_embeddings=False, **CROSS),
        (11, 13, 8, 7),
        (TOKENS, LENGTHS, TARGET),
    ),
    "seq2seq": (Seq2SeqConfig(**RECURRENT), (11, 13, 8, 9), (TOKENS, LENGTHS, TARGET)),
    "captioner": (small(CaptionerConfig, **CROSS), (SHAPE, 13, 7), (MAPS, None, TARGET)),
}


def build(family, dtype=jnp.float32, **changes):
    config, sizes, inputs = FAMILIES[family]
    model = dataclasses.replace(config, **changes).build(*sizes, dtype=dtype)
    return model, random_params(model, *inputs), inputs


@pytest.mark.more
@pytest.mark.parametrize(
    ("family", "place"), [("vit", "attention_dropout"), ("masked_lm", "embedding_dropout"), ("cnn", "dropout")]
)
def test_dropout_is_off_in_evaluation_and_keyed_in_training(family, place):
    model, params, inputs = build(family, **{place: 0.3})

    def train(seed):
        return apply(model, params, *inputs, train=True, rngs={"dropout": jax.random.key(seed)})

    chex.assert_trees_all_equal(apply(model, params, *inputs), apply(build(family)[0], params, *inputs))
    chex.assert_trees_all_equal(train(0), train(0))
    assert jnp.abs(train(0) - train(1)).max() > 1e-3


@pytest.mark.parametrize("family", [name for name, (config, *_) in FAMILIES.items() if hasattr(config, "norm")])
def test_a_sandwich_is_pre_with_norms_of_what_layers_give(family):
    """The sum of the layers has a norm after it in both, so no head reads it as it is."""
    pre, sandwich = (set(flatten_dict(build(family, norm=norm)[1], sep="/")) for norm in ("pre", "sandwich"))
    assert pre < sandwich
    assert {path.split("/")[-2][-4:] for path in sandwich - pre} == {"_out"}


@pytest.mark.parametrize("family", once(FAMILIES, ["vit", "seq2seq"]))
def test_bfloat16_is_close_and_parameters_stay_float32(family):
    (exact, params, inputs), (low, *_) = build(family), build(family, jnp.bfloat16)
    expected, found = (apply(model, params, *inputs) for model in (exact, low))
    assert found.dtype == jnp.float32
    assert np.any(found != expected)
    chex.assert_trees_all_close(found, expected, atol=0.06 * float(jnp.abs(expected).max()))
    initial = jax.eval_shape(low.init, jax.random.key(0), *inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(initial)} == {jnp.dtype("float32")}


# Each kind of state, table, tie and alignment, as decoder self-attention and as cross-attention.
PAIRS = [
    ("dot_product", "dot_product"),
    ("super|neural(pairs='unique')", "neural(pairs='unique')|super"),
    ("linear|delta", "delta|linear"),
    ("positional|gaussian", "gaussian|positional"),
    ("efficient|additive", "additive|efficient"),
]
WRITING = [("encoder_decoder", {"decoder_attention": own, "cross_attention": cross}) for own, cross in PAIRS]
WRITING += [("seq2seq", {"attention": "additive", "cell": "lstm"})]
WRITING += [("seq2seq", {"attention": "location"})]
WRITING += [("captioner", {"encoder": encoder}) for encoder in ("vit(patch=4)", "cnn(stages=2, width=4)")]
KEPT = [WRITING[1], WRITING[5], WRITING[-1]]


@pytest.mark.parametrize(("family", "changes"), once(WRITING, KEPT))
def test_a_target_token_by_token_is_the_whole(family, changes):
    model, params, (source, lengths, target) = build(family, **changes)
    whole = apply(model, params, source, lengths, target)
    caches = apply(model, params, source, lengths, max_length=7, method="start")
    step = jax.jit(lambda tokens, caches: model.apply(params, tokens, False, caches, method="step"))
    chex.assert_trees_all_close(in_parts(step, target, caches, (3, 4, 5))[0], whole, atol=2e-5, rtol=1e-4)


MISTAKES = [
    ("vit", {"heads": 3}, r"model.heads=3 does not divide model.width=16"),
    ("vit", {"implementation": "cuda"}, r"Unknown model.implementation 'cuda'"),
    ("vit", {"positions": "rotary"}, r"Unknown model.positions"),
    ("vit", {"patch": 3}, r"model.patch=3 does not divide images of 8x8"),
    ("cnn", {"attention": "squeeze_excitaton"}, r"Unknown attention of a cnn 'squeeze_excitaton'\. Did you mean 'sq"),
    ("cnn", {"attention": "none|none|none"}, r"names 3 stages, but the model has 2; name at most 2"),
    ("cnn", {"attention": "cbam(ratio=16)"}, r"ratio=16 does not divide 8 channels"),
    ("gpt", {"attention": "positional", "positions": "rotary"}, "positional has no queries and keys to rotate"),
    ("gpt", {"attention": "gaussian(normalise=False)", "positions": "rotary"}, "The values of gaussian are its keys"),
    ("masked_lm", {"norm_first": False}, r"norm_first=False is for norms before layers; set model\.norm=pre"),
    ("encoder_decoder", {"cross_attention": "gaussian(decay=0.1)"}, "has a gaussian whose options are for self-att"),
    ("encoder_decoder", {"implementation": "xla|auto|xla"}, "names 3 layers, but the model has 2"),
    ("encoder_decoder", {"shared_embeddings": True}, "needs one vocabulary, but the source's has 11 tokens and the t"),
    ("captioner", {"encoder": "vitt"}, "Did you mean 'vit'"),
    ("captioner", {"encoder": "vit(patch=5)"}, "does not divide images of 8x12 pixels"),
    ("captioner", {"encoder": "cnn(width=10)"}, "is invalid: groups=4 does not divide width=10"),
]


@pytest.mark.parametrize(("family", "changes", "message"), MISTAKES)
def test_mistakes_are_one_sentence(family, changes, message):
    with pytest.raises(UsageError, match=message) as error:
        build(family, **changes)
    assert "\n" not in str(error.value)
