"""Models of all families without transformers: `tests/parity` compares the logits with theirs."""

import dataclasses
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import load_file

from attention import UsageError
from models.encoder_decoder import EncoderDecoder
from models.gpt import GPT
from models.layers.positions import sinusoids_in_halves
from models.masked_lm import MaskedLM
from models.published import pretrained
from models.published.hugging_face import CONFIG, GENERATION, SAFETENSORS
from models.vit import ViT
from tests.models.published.families import (
    DECODERS,
    IMAGES,
    LENGTH,
    MODELS,
    SPECIAL,
    TOKENS,
    VOCABULARY,
    build,
    describe,
    edit,
    export,
    load,
)
from tests.models.small import random_params
from tests.sizes import more, once
from train.state import count_parameters


@pytest.mark.parametrize("kind", once(MODELS, [*{*MODELS} - {*DECODERS}, "llama", "mamba2"]))
def test_a_model_goes_out_as_what_it_is_and_comes_back(kind, tmp_path):
    config, params = export(tmp_path, kind)
    assert json.loads((tmp_path / CONFIG).read_text())["model_type"] == kind.partition(" ")[0]
    described = pretrained.describe(str(tmp_path))
    ours = ("name", "implementation", "dropout", "embedding_dropout", "attention_dropout")
    same = type(config)(**described.fields | {name: getattr(config, name) for name in ours})
    spelled = {"positions": config.positions} | config.attentions()
    assert dataclasses.replace(same, **spelled) == config
    assert (same.mechanisms, same.rotaries) == (config.mechanisms, config.rotaries)
    assert described.vocabulary == (5 if kind == "vit" else VOCABULARY)
    if kind in ("roberta", "marian"):
        assert described.special == (SPECIAL if kind == "marian" else {})
    assert described.length == LENGTH or kind not in ("roberta", "marian", *DECODERS)
    start = jax.tree.map(lambda x: jnp.ones_like(x) if x.any() else x, params)
    loaded, report = pretrained.load(str(tmp_path), config, start)
    chex.assert_trees_all_close(loaded, params, rtol=1e-6)
    assert report.skipped == ()
    absent = {"diffllama": {"scale"}, "modernbert": {"bias"}, "qwen2": {"bias"}}.get(kind, set())
    assert {path.rpartition("/")[2] for path in report.new} == absent
    assert len({*report.loaded, *report.new}) == len(flatten_dict(params))


ROBERTA, MARIAN = "roberta.encoder.layer.{}.", "model.decoder.layers.0."
LAYOUTS = {
    "roberta": {
        **{
            f"{ROBERTA.format(0)}attention.self.{name}.weight": f"block_0/attention/{name}/kernel"
            for name in ("query", "key", "value")
        },
        f"{ROBERTA.format(0)}attention.output.dense.weight": "block_0/attention/out/kernel",
        f"{ROBERTA.format(1)}output.dense.weight": "block_1/mlp/down/kernel",
        "roberta.embeddings.word_embeddings.weight": "embed/embedding",
    },
    "marian": {
        f"{MARIAN}encoder_attn.k_proj.weight": "decoder_0/cross/key/kernel",
        f"{MARIAN}encoder_attn.out_proj.weight": "decoder_0/cross/out/kernel",
        f"{MARIAN}self_attn_layer_norm.weight": "decoder_0/norm_attention/scale",
        f"{MARIAN}encoder_attn_layer_norm.weight": "decoder_0/norm_cross/scale",
        f"{MARIAN}final_layer_norm.weight": "decoder_0/norm_mlp/scale",
        "model.encoder.layers.1.fc1.weight": "encoder_1/mlp/up/kernel",
        "final_logits_bias": "head_bias",
        "model.shared.weight": "embed/embedding",
    },
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_names_and_layout_are_pytorchs(kind, tmp_path):
    """x Wᵀ + b, with heads side by side."""
    params = flatten_dict(export(tmp_path, kind)[1], sep="/")
    weights = load_file(tmp_path / SAFETENSORS)
    for theirs, ours in LAYOUTS[kind].items():
        found, expected = weights[theirs], np.asarray(params[ours])
        turned = expected.reshape(found.shape[::-1]).T if ours.endswith("kernel") else expected.reshape(found.shape)
        np.testing.assert_array_equal(found, turned, theirs)
    if kind == "roberta":
        assert weights["roberta.embeddings.position_embeddings.weight"].shape == (LENGTH + 2, 16)


def test_tokens_and_lengths_are_written(tmp_path):
    export(tmp_path, "marian")
    config, generation = (json.loads((tmp_path / name).read_text()) for name in (CONFIG, GENERATION))
    for written in (config, generation):
        assert (written["pad_token_id"], written["decoder_start_token_id"], written["eos_token_id"]) == (12, 12, 0)
    assert (config["max_position_embeddings"], generation["max_length"]) == (LENGTH, LENGTH)
    assert config["decoder_vocab_size"] == config["vocab_size"] == VOCABULARY
    assert config["decoder_attention_heads"] == config["encoder_attention_heads"] == 2
    assert generation["bad_words_ids"] == [[12]]


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


OF_MARIAN = {
    "attention": (r"encoder_\d/attention", r"model\.encoder\.layers\.\d\.self_attn"),
    "decoder_attention": ("decoder_0/attention", r"model\.decoder\.layers\.0\.self_attn"),
    "cross_attention": ("decoder_0/cross", r"model\.decoder\.layers\.0\.encoder_attn"),
}
FITTING = [
    # a mechanism, what is new of it, and what is skipped of the published one
    ("mlp_marian", {"query", "key", "out"}, {"q_proj", "k_proj", "out_proj"}),
    ("mlp_kv", {"key", "value"}, {"k_proj", "v_proj"}),
    ("efficient", set(), {"k_proj", "v_proj"}),
    ("super", {"align_kernel", "align_bias"}, {"k_proj", "v_proj"}),
    ("neural", {"score"}, set()),
]
ROBERTAS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "dense": "out_proj"}


@pytest.mark.parametrize(("mechanism", "new", "skipped"), once(FITTING, [FITTING[0], *FITTING[-2:]]))
@pytest.mark.parametrize("field", ["attention", *map(more, [*OF_MARIAN][1:]), ""])
def test_other_mechanisms_take_all_that_fits(mechanism, new, skipped, field, tmp_path):
    """A field of Marian, or the second layer of RoBERTa."""
    kind = "marian" if field else "roberta"
    changes = {field: mechanism} if field else {"attention": f"dot_product|{mechanism}"}
    ours, theirs = OF_MARIAN[field] if field else ("block_1/attention", r"roberta\.encoder\.layer\.1\.attention\.\w+")
    _, params = export(tmp_path, kind)
    config, fresh = build(kind, seed=7, **changes)
    loaded, report = pretrained.load(str(tmp_path), config, fresh)
    left = {re.fullmatch(rf"{theirs}\.(\w+)\.\w+", name)[1] for name in report.skipped}
    assert {ROBERTAS.get(name, name) for name in left} == skipped
    assert {re.fullmatch(rf"{ours}/(\w+).*", name)[1] for name in report.new} == new
    kept, given, start = (flatten_dict(tree, sep="/") for tree in (loaded, params, fresh))
    assert {*report.loaded, *report.new} == set(kept)
    for name in kept:
        chex.assert_trees_all_equal(kept[name], start[name] if name in report.new else given[name])


def test_the_report_reads_well(tmp_path):
    export(tmp_path, "roberta")
    _, report = load(tmp_path, "roberta", attention="mlp_kv", length=5)
    layer = "roberta.encoder.layer.*.attention.self"
    parts = ("down/bias", "down/kernel", "norm/bias", "norm/scale", "up/bias", "up/kernel")
    theirs = [f"{layer}.{piece}.{leaf} (2)" for piece in ("key", "value") for leaf in ("bias", "weight")]
    ours = [f"block_*/attention/{piece}/{part} (2)" for piece in ("key", "value") for part in parts]
    carried = [f"block_*/attention/{piece}/{leaf} (2)" for piece in ("out", "query") for leaf in ("bias", "kernel")]
    assert str(report).splitlines() == [
        f"From {tmp_path}: {len(report.loaded)} arrays loaded.",
        "First rows only: positions/embedding.",
        f"Carried over to other mechanisms: {', '.join(carried)}.",
        f"Skipped: {', '.join(theirs)}.",
        f"New: {', '.join(ours)}.",
    ]


@pytest.mark.parametrize(("kind", "cut"), [("roberta", 5), ("marian", 50)])
def test_positions_are_cut_where_they_are_learned_and_sinusoids_have_no_length(kind, cut, tmp_path):
    _, params = export(tmp_path, kind)
    loaded, report = load(tmp_path, kind, length=cut)
    if kind == "roberta":
        assert report.cut == ("positions/embedding",)
        params["positions"]["embedding"] = params["positions"]["embedding"][: cut + 2]
    chex.assert_trees_all_equal(loaded, params)


def test_copies_and_tables_of_older_files_are_no_surprise_but_others_are(tmp_path):
    """Copies of the embeddings and tables of positions, as in the published `pytorch_model.bin`."""
    _, params = export(tmp_path, "marian")
    table, head = "model.decoder.embed_positions.weight", "lm_head.weight"

    def as_published(weights):
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", head):
            weights[name] = weights["model.shared.weight"].copy()
        positions = np.array(sinusoids_in_halves(24, 16))
        weights |= {table: positions, table.replace("decoder", "encoder"): positions}

    edit(tmp_path, as_published)
    loaded, report = load(tmp_path, "marian")
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()
    edit(tmp_path, lambda weights: weights.update({table: weights[table][:, ::-1].copy()}))
    with pytest.raises(UsageError, match=r"a model\.decoder\.embed_positions\.weight that is no table of sinusoids"):
        load(tmp_path, "marian")
    edit(tmp_path, lambda weights: weights.update({head: weights[head] + 1}))
    with pytest.raises(UsageError, match=r"has a lm_head\.weight of its own, but the model ties it to model\.shared"):
        load(tmp_path, "marian")


def test_old_files_say_less(tmp_path):
    _, params = export(tmp_path, "marian")
    fields = ("tie_word_embeddings", "share_encoder_decoder_embeddings", "decoder_vocab_size")
    describe(tmp_path, dict.fromkeys(fields, ...) | {"add_bias_logits": False, "num_hidden_layers": 2})
    chex.assert_trees_all_equal(load(tmp_path, "marian")[0], params)


def test_the_bias_of_robertas_head_may_be_its_decoders(tmp_path):
    _, params = export(tmp_path, "roberta")
    edit(tmp_path, lambda w: w.update({"lm_head.decoder.bias": w.pop("lm_head.bias")}))
    chex.assert_trees_all_equal(load(tmp_path, "roberta")[0], params)


@pytest.mark.parametrize(
    ("kind", "head", "block"), [("roberta", "head", "block_1"), ("marian", "head_bias", "decoder_0")]
)
def test_a_model_without_a_head_leaves_it_new(kind, head, block, tmp_path):
    _, params = export(tmp_path, kind)
    body = "roberta." if kind == "roberta" else "model."

    def without_head(weights):
        for name in list(weights):
            array = weights.pop(name)
            if name.startswith(body):
                weights[name.removeprefix(body)] = array
        if kind == "roberta":
            weights["pooler.dense.weight"] = np.zeros((16, 16), np.float32)

    edit(tmp_path, without_head)
    loaded, report = load(tmp_path, kind)
    assert {name.split("/")[0] for name in report.new} == {head}
    assert report.skipped == (("roberta.pooler.dense.weight",) if kind == "roberta" else ())
    chex.assert_trees_all_equal(loaded[block], params[block])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("roberta", {"heads": 4, "mlp": 8}, "model.heads is 4 but there 2; model.mlp is 8 but there 32"),
        ("roberta", {"positions": "rotary"}, "model.positions is 'rotary' but there 'learned'"),
        ("marian", {"output_bias": False}, "model.output_bias is False but there True"),
    ],
)
def test_another_architecture_is_refused_with_both_values(kind, changes, message, tmp_path):
    export(tmp_path, kind)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        load(tmp_path, kind, **changes)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("roberta", {"vocab_size": 14}, "the vocabulary is 13 but there 14"),
        ("roberta", {"max_position_embeddings": 7}, "the length is 6 but there 5"),
        ("roberta", {"model_type": "albert"}, "of type 'albert'; only 'roberta', 'bert', 'modernbert' can be loaded"),
        ("roberta", {"position_embedding_type": "relative_key"}, "='relative_key'; only 'absolute'"),
        ("marian", {"decoder_ffn_dim": 64}, "has decoder_ffn_dim=64; only 32 can be loaded"),
        ("marian", {"activation_function": "mish"}, "activation_function='mish'; choose one with gelu"),
        ("marian", {"d_model": None}, "lacks d_model"),
        ("bert", {"hidden_act": "relu"}, "has hidden_act='relu'; only 'gelu' can be loaded"),
        ("vit", {"model_type": "deit"}, "cannot be loaded: its distillation token"),
        ("modernbert", {"local_attention": "wide"}, "has an invalid value"),
        ("modernbert", {"layer_types": ["full_attention"]}, "cannot be loaded; only 2 times sliding_attention or full"),
        ("modernbert", {"rope_parameters": ..., "global_rope_theta": 0}, "options must be numbers above 0"),
        ("vit", {"image_size": [6, 4]}, r"image_size=\[6, 4\] and patch_size=2, but only whole"),
        ("diffllama", {"num_key_value_heads": 1}, "heads with 1 key heads cannot be loaded"),
        ("t5", {"feed_forward_proj": "twice-gelu"}, "feed_forward_proj='twice-gelu' cannot be loaded; gated-gelu can"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of each head"),
        ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings='false', which cannot be loaded"),
        ("deepseek_v2", {"first_k_dense_replace": 1}, r"1 of the 2 layers have experts \(first_k_dense_replace=1\)"),
        more("deepseek_v2", {"v_head_dim": 3}, "Values of a head are 3 wide and keys 4; only equal widths"),
        ("llama", {"model_type": "gpt_oss"}, "'gpt_oss', which cannot be loaded: its MLPs are experts"),
        more("qwen3", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05 also applies to queries and keys"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "a GPT is causal"),
        ("llama", {"intermediate_size": 0}, "intermediate_size=0; only blocks with an MLP can be loaded"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic.* cannot be loaded; only lin"),
        ("llama", {"rope_parameters": ..., "rope_theta": 0}, "options must be numbers above 0"),  # 0 is not the usual
    ],
)
def test_what_our_models_have_not_is_refused(kind, change, message, tmp_path):
    export(tmp_path, kind)
    describe(tmp_path, change)
    with pytest.raises(UsageError, match=message):
        load(tmp_path, kind)


def test_other_tokens_do_not_fit(tmp_path):
    config, _ = export(tmp_path, "marian")
    pretrained.check_fit(str(tmp_path), config, VOCABULARY, 100, SPECIAL)
    for special, message in (
        (SPECIAL | {"end": 2}, "the token end is 2 but there 0"),
        ({"pad": 12, "end": 0}, "the token start is None but there 12"),
    ):
        with pytest.raises(UsageError, match=message):
            pretrained.check_fit(str(tmp_path), config, VOCABULARY, 100, special)


def test_other_classes_get_a_new_head_and_other_images_are_refused(tmp_path):
    config, params = export(tmp_path, "vit")
    fresh = random_params(ViT(config, 7, 10), IMAGES, seed=1)["params"]
    loaded, report = pretrained.load(str(tmp_path), config, fresh)
    assert report.new == ("head/bias", "head/kernel")
    assert report.skipped == ("classifier.bias", "classifier.weight")
    chex.assert_trees_all_equal(loaded, params | {"head": fresh["head"]})
    with pytest.raises(UsageError, match="the number of tokens is 5 but there 10"):
        pretrained.check_fit(str(tmp_path), config, 5, 5)


@pytest.mark.parametrize(
    ("kind", "changes", "special", "message"),
    [
        ("roberta", {"attention": "luong_dot|mlp_roberta"}, {}, "model.attention is 'luong_dot|mlp_roberta', there 'd"),
        ("roberta", {"positions": "sinusoidal"}, {}, "RoBERTa is closest, but model.positions is 'sinusoidal', there"),
        ("marian", {"cross_attention": "mlp_kv"}, SPECIAL, "model.cross_attention is 'mlp_kv', there 'dot_product'"),
        ("marian", {"norm_epsilon": 1e-6}, SPECIAL, "model.norm_epsilon is 1e-06, there 1e-05"),
        ("marian", {}, {"pad": 12}, "needs the ids of its special tokens; give that of start, end"),
        ("llama", {"attention": "neural(dim=2)"}, {}, "closest, but model.attention is 'neural(dim=2)'"),
        ("llama", {"mlp": 0, "gated": False, "mlp_bias": True}, {}, "model.mlp is 0, and blocks there have an MLP"),
    ],
)
def test_what_a_family_lacks_is_not_exported(kind, changes, special, message, tmp_path):
    with pytest.raises(UsageError, match=re.escape(message)):
        pretrained.export(str(tmp_path / "new"), *build(kind, **changes), special)
    assert not (tmp_path / "new").exists()


def test_layers_with_biases_of_their_own_are_no_t5(tmp_path):
    config, params = build("t5")
    params["encoder_1"]["attention"]["score"] = {"bucket_bias": jnp.ones((2, 8))}
    with pytest.raises(UsageError, match="The layers of T5's encoder share a bias of relative positions"):
        pretrained.export(str(tmp_path), config, params, SPECIAL, 6)


def test_the_output_of_t5_is_scaled_where_it_is_tied(tmp_path):
    """Raffel et al. multiply by 1/√D before tied embeddings; ours has that in its last norm."""
    _, params = export(tmp_path, "t5", tied_output=True)
    norm = load_file(tmp_path / SAFETENSORS)["decoder.final_layer_norm.weight"]
    np.testing.assert_allclose(norm, 4 * params["decoder_norm"]["scale"], rtol=1e-6)
    assert pretrained.describe(str(tmp_path)).fields["tied_output"]


BASE = {"depth": 12, "width": 768, "heads": 12, "mlp": 3072}


@pytest.mark.parametrize(
    ("kind", "sizes", "arguments", "inputs", "count"),
    [
        ("roberta", BASE, (50_265, 512), (TOKENS,), 124_697_433),
        more("bert", BASE, (30_522, 512), (TOKENS,), 109_514_298),
        ("vit", BASE | {"patch": 16}, (1000, 197), (jnp.zeros((1, 224, 224, 3)),), 86_567_656),
        more("bloom", {"depth": 24, "width": 1024, "heads": 16, "mlp": 4096}, (250_880, 6), (TOKENS,), 559_214_592),
        (
            "t5",
            {"depth": 6, "decoder_depth": 6, "width": 512, "heads": 8, "mlp": 2048, "head": 0}
            | {"tied_output": True, "gated": False, "attention": "relative", "decoder_attention": "relative"},
            (32_128, 32_128, 6, 6),
            (TOKENS, jnp.array([4]), TOKENS),
            60_506_624 + 2 * 5 * 32 * 8,  # t5-small, whose layers share the biases of 32 buckets and 8 heads
        ),
    ],
)
def test_parameters_are_as_many_as_the_published_models_have(kind, sizes, arguments, inputs, count):
    """Those of roberta-base, bert-base-uncased, vit-base-patch16-224, bloom-560m and t5-small."""
    model = {"vit": ViT, "bloom": GPT, "t5": EncoderDecoder}.get(kind, MaskedLM)
    model = model(dataclasses.replace(MODELS[kind], **sizes), *arguments)
    assert count_parameters(jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]) == count
