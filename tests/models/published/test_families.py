"""Models of all families but decoders without transformers: `tests/parity` compares the logits with theirs."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from safetensors.numpy import load_file

from attention import UsageError
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.gpt import GPT, GPTConfig
from models.masked_lm import MaskedLM, MaskedLMConfig
from models.published import pretrained
from models.published.hugging_face import CONFIG, SAFETENSORS
from models.vit import ViT, ViTConfig
from tests.models.small import random_params, small
from tests.sizes import more
from train.state import count_parameters

SPECIAL = {"pad": 0, "start": 0, "end": 1}
TOKENS, IMAGES = jnp.zeros((1, 6), jnp.int32), jnp.zeros((1, 6, 6, 2))
MODERN = {"norm_type": "rms", "mlp_bias": False, "attention_bias": False, "gated": True}
RELATIVE = "relative(buckets=8, distance=12, scale=1.0"
MODELS = {
    "roberta": small(MaskedLMConfig, norm="post"),
    "marian": small(
        EncoderDecoderConfig, norm="post", positions="sinusoidal_halves", activation="swish", output_bias=True
    ),
    "bert": small(MaskedLMConfig, name="masked_lm", norm="post", padding_token=0, skip_padding=False, token_types=2),
    "modernbert": small(
        MaskedLMConfig,
        name="masked_lm",
        attention="dot_product|dot_product(window=3)",
        positions="rotary(base=160000.0)|rotary(base=10000.0)",
        padding_token=0,
        skip_padding=False,
        token_types=0,
        norm_first=False,
        **MODERN | {"norm_type": "layer_without_bias"},
    ),
    "vit": small(ViTConfig, name="vit", patch=2, pool="class_token"),
    "bloom": small(GPTConfig, attention="alibi", positions="none", activation="gelu_tanh", mlp=64, norm_embedding=True),
    "diffllama": small(
        GPTConfig,
        attention="differential(kv_heads=2)",
        positions="rotary(base=500.0)",
        activation="swish",
        heads=4,
        head=8,
        tied_output=False,
        output_bias=False,
        **MODERN,
    ),
    "t5": small(
        EncoderDecoderConfig,
        attention=f"{RELATIVE})",
        decoder_attention=f"{RELATIVE}, ahead=False)",
        cross_attention="dot_product(scale=1.0)",
        positions="none",
        activation="gelu_tanh",
        head=6,
        scale_embeddings=False,
        tied_output=False,
        **MODERN,
    ),
}


def build(kind):
    """A model and its parameters, of which every one counts."""
    config = MODELS[kind]
    if kind == "vit":
        return config, random_params(ViT(config, 5, 10), IMAGES)["params"]
    if kind in ("t5", "marian"):
        params = random_params(EncoderDecoder(config, 11, 11, 6, 6), TOKENS, jnp.array([6]), TOKENS)["params"]
        for side in ("encoder", "decoder") if kind == "t5" else ():  # which layers share
            params[f"{side}_1"]["attention"]["score"] = params[f"{side}_0"]["attention"]["score"]
        return config, params
    params = random_params((MaskedLM if "bert" in kind else GPT)(config, 11, 6), TOKENS)["params"]
    if kind == "modernbert":  # whose head has no first bias
        params["head"]["dense"]["bias"] = jnp.zeros(16)
    if kind == "diffllama":  # whose norm of heads has no weights
        for layer in range(2):
            params[f"block_{layer}"]["attention"]["score"]["scale"] = jnp.ones(8)
    return config, params


def export(folder, kind):
    config, params = build(kind)
    pretrained.export(str(folder), config, params, SPECIAL, 6)
    return config, params


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_goes_out_as_what_it_is_and_comes_back(kind, tmp_path):
    config, params = export(tmp_path, kind)
    assert json.loads((tmp_path / CONFIG).read_text())["model_type"] == kind
    described = pretrained.describe(str(tmp_path))
    rates = {name: getattr(config, name) for name in ("dropout", "embedding_dropout", "attention_dropout")}
    same = type(config)(**{"name": config.name} | described.fields | rates)
    assert dataclasses.replace(same, **config.attentions()) == config
    assert same.mechanisms == config.mechanisms
    assert described.vocabulary == (5 if kind == "vit" else 11)
    if kind in ("roberta", "marian"):
        assert (described.length, described.special) == (6, SPECIAL if kind == "marian" else {})
    start = jax.tree.map(lambda x: x if kind == "modernbert" and not x.any() else jnp.ones_like(x), params)
    loaded, report = pretrained.load(str(tmp_path), config, start)
    chex.assert_trees_all_close(loaded, params, rtol=1e-6)
    assert report.skipped == ()
    absent = {"diffllama": {"scale"}, "modernbert": {"bias"}}.get(kind, set())
    assert {path.rpartition("/")[2] for path in report.new} == absent
    assert len({*report.loaded, *report.new}) == len(traverse_util.flatten_dict(params))


def test_patches_have_pytorchs_layout(tmp_path):
    _, params = export(tmp_path, "vit")
    kernel = load_file(tmp_path / SAFETENSORS)["vit.embeddings.patch_embeddings.projection.weight"]
    for row, column, channel in np.ndindex(2, 2, 2):
        ours = params["embed"]["kernel"][4 * row + 2 * column + channel]
        np.testing.assert_array_equal(kernel[:, channel, row, column], ours)
    theirs = json.loads((tmp_path / CONFIG).read_text())
    assert (theirs["image_size"], theirs["num_channels"], len(theirs["id2label"])) == (6, 2, 5)


def test_heads_are_where_transformers_looks_for_them(tmp_path):
    _, bloom = export(tmp_path / "bloom", "bloom")
    fused = load_file(tmp_path / "bloom" / SAFETENSORS)["transformer.h.1.self_attention.query_key_value.weight"]
    for head, (index, side) in ((head, pair) for head in range(2) for pair in enumerate(("query", "key", "value"))):
        start = 8 * (3 * head + index)  # query, key and value of a head, then of the next
        ours = bloom["block_1"]["attention"][side]["kernel"][:, head]
        np.testing.assert_array_equal(fused[start : start + 8].T, ours)
    _, differential = export(tmp_path / "diffllama", "diffllama")
    key = load_file(tmp_path / "diffllama" / SAFETENSORS)["model.layers.0.self_attn.k_proj.weight"]
    first, second = np.split(np.asarray(differential["block_0"]["attention"]["key"]["kernel"]), 2, axis=-1)
    np.testing.assert_array_equal(key.T, np.concatenate([first, second], axis=1).reshape(16, -1))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("roberta", {"vocab_size": 12}, "the vocabulary is 11 but there 12"),
        ("roberta", {"model_type": "albert"}, "of type 'albert'; only 'roberta', 'bert', 'modernbert' can be loaded"),
        ("roberta", {"is_decoder": True}, "has is_decoder=True; only False can be loaded"),
        ("roberta", {"position_embedding_type": "relative_key"}, "='relative_key'; only 'absolute'"),
        ("roberta", {"hidden_act": "mish"}, "hidden_act='mish'; choose one with gelu"),
        ("marian", {"vocab_size": 14, "decoder_vocab_size": 14}, "the vocabulary is 11 but there 14"),
        ("marian", {"decoder_ffn_dim": 64}, "has decoder_ffn_dim=64; only 32 can be loaded"),
        ("marian", {"normalize_before": True}, "has normalize_before=True; only False can be loaded"),
        ("marian", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings=False; only True"),
        ("marian", {"activation_function": "mish"}, "activation_function='mish'; choose one with gelu"),
        ("marian", {"d_model": None}, "lacks d_model"),
        ("marian", {"model_type": "roberta"}, "is a model of type 'roberta'; only 'marian', 't5' can be loaded"),
        ("bert", {"hidden_act": "relu"}, "has hidden_act='relu'; only 'gelu' can be loaded"),
        ("vit", {"model_type": "deit"}, "cannot be loaded: its second token, of distillation"),
        ("modernbert", {"classifier_bias": True}, "classifier_bias=True; only False can be loaded"),
        ("modernbert", {"local_attention": "wide"}, "has a value that cannot be"),
        ("modernbert", {"layer_types": ["full_attention"]}, "cannot be loaded; only 2 times sliding_attention or full"),
        ("vit", {"image_size": [6, 4]}, r"image_size=\[6, 4\] and patch_size=2, but only whole"),
        ("bloom", {"apply_residual_connection_post_layernorm": True}, "layernorm=True; only False can be loaded"),
        ("diffllama", {"num_key_value_heads": 1}, "heads with 1 key heads cannot be loaded"),
        ("diffllama", {"rms_norm_eps": 1e-6}, "rms_norm_eps=1e-06; only 1e-05 can be loaded"),
        ("t5", {"feed_forward_proj": "gated-mish"}, "='mish'; choose one with gelu"),
        ("t5", {"feed_forward_proj": "twice-gelu"}, "feed_forward_proj='twice-gelu' cannot be loaded; gated-gelu can"),
    ],
)
def test_what_our_models_have_not_is_refused(kind, change, message, tmp_path):
    config, params = export(tmp_path, kind)
    theirs = json.loads((tmp_path / CONFIG).read_text())
    (tmp_path / CONFIG).write_text(json.dumps(theirs | change))
    with pytest.raises(UsageError, match=message):
        pretrained.load(str(tmp_path), config, params)


def test_only_models_of_known_types_are_described(tmp_path):
    (tmp_path / CONFIG).write_text(json.dumps({"model_type": "albert"}))
    with pytest.raises(UsageError, match=r"of type 'albert'; only 'roberta', 'bert', 'modernbert', 'vit', .* can be"):
        pretrained.describe(str(tmp_path))


def test_other_classes_get_a_new_head_and_other_images_are_refused(tmp_path):
    config, params = export(tmp_path, "vit")
    fresh = random_params(ViT(config, 7, 10), IMAGES, seed=1)["params"]
    loaded, report = pretrained.load(str(tmp_path), config, fresh)
    assert report.new == ("head/bias", "head/kernel")
    assert report.skipped == ("classifier.bias", "classifier.weight")
    chex.assert_trees_all_equal(loaded, params | {"head": fresh["head"]})
    with pytest.raises(UsageError, match="the number of tokens is 5 but there 10"):
        pretrained.check_fit(str(tmp_path), config, 5, 5)


def test_layers_with_biases_of_their_own_are_no_t5(tmp_path):
    config, params = build("t5")
    params["encoder_1"]["attention"]["score"] = {"bucket_bias": jnp.ones((2, 8))}
    with pytest.raises(UsageError, match="The layers of T5's encoder share a bias of relative positions"):
        pretrained.export(str(tmp_path), config, params, SPECIAL, 6)


def test_the_output_of_t5_is_scaled_where_it_is_tied(tmp_path):
    """Raffel et al. multiply by 1/√D before tied embeddings; ours has that in its last norm."""
    config = dataclasses.replace(MODELS["t5"], tied_output=True)
    params = random_params(EncoderDecoder(config, 11, 11, 6, 6), TOKENS, jnp.array([6]), TOKENS)["params"]
    for side in ("encoder", "decoder"):
        params[f"{side}_1"]["attention"]["score"] = params[f"{side}_0"]["attention"]["score"]
    pretrained.export(str(tmp_path), config, params, SPECIAL, 6)
    norm = load_file(tmp_path / SAFETENSORS)["decoder.final_layer_norm.weight"]
    np.testing.assert_allclose(norm, 4 * params["decoder_norm"]["scale"], rtol=1e-6)
    assert pretrained.describe(str(tmp_path)).fields["tied_output"]


BASE = {"depth": 12, "width": 768, "heads": 12, "mlp": 3072}


@pytest.mark.parametrize(
    ("kind", "sizes", "arguments", "inputs", "count"),
    [
        more("bert", BASE, (30_522, 512), (TOKENS,), 109_514_298),
        ("vit", BASE | {"patch": 16}, (1000, 197), (jnp.zeros((1, 224, 224, 3)),), 86_567_656),
        more("bloom", {"depth": 24, "width": 1024, "heads": 16, "mlp": 4096}, (250_880, 6), (TOKENS,), 559_214_592),
        (
            "t5",
            {"depth": 6, "decoder_depth": 6, "width": 512, "heads": 8, "mlp": 2048, "head": 0}
            | {"tied_output": True, "gated": False, "attention": "relative", "decoder_attention": "relative"},
            (32_128, 32_128, 6, 6),
            (TOKENS, jnp.array([6]), TOKENS),
            60_506_624 + 2 * 5 * 32 * 8,  # t5-small, whose layers share the biases of 32 buckets and 8 heads
        ),
    ],
)
def test_parameters_are_as_many_as_the_published_models_have(kind, sizes, arguments, inputs, count):
    """Those of bert-base-uncased, vit-base-patch16-224, bloom-560m and t5-small."""
    model = {"bert": MaskedLM, "vit": ViT, "bloom": GPT, "t5": EncoderDecoder}[kind]
    model = model(dataclasses.replace(MODELS[kind], **sizes), *arguments)
    assert count_parameters(jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]) == count
