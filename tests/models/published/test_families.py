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
from models.layers.positions import sinusoids_in_halves
from models.mechanisms import resolve
from models.published import decoders, pretrained
from models.published.hugging_face import CONFIG, SAFETENSORS
from tests.models.published import families
from tests.models.published.families import MODELS, SPECIAL, TOKENS, build, describe, edit, export, load
from tests.models.small import random_params
from tests.sizes import more, once
from train.state import count_parameters


@pytest.mark.parametrize("kind", once(MODELS, [*{*MODELS} - {*families.DECODERS}, "llama", "mamba2"]))
def test_a_model_goes_out_as_what_it_is_and_comes_back(kind, tmp_path):
    config, params = export(tmp_path, kind)
    assert json.loads((tmp_path / CONFIG).read_text())["model_type"] == kind.partition(" ")[0]
    described = pretrained.describe(str(tmp_path))
    ours = ("name", "implementation", "dropout", "embedding_dropout", "attention_dropout")
    same = type(config)(**described.fields | {name: getattr(config, name) for name in ours})
    spelled = {"positions": config.positions} | config.attentions()
    assert dataclasses.replace(same, **spelled) == config
    assert (same.mechanisms, same.rotaries) == (config.mechanisms, config.rotaries)
    assert described.vocabulary == (5 if kind == "vit" else families.VOCABULARY)
    if kind in ("roberta", "marian"):
        assert described.special == (SPECIAL if kind == "marian" else {})
    assert described.length == families.LENGTH or kind not in ("roberta", "marian", *families.DECODERS)
    start = jax.tree.map(lambda x: jnp.ones_like(x) if x.any() else x, params)
    loaded, report = pretrained.load(str(tmp_path), config, start)
    chex.assert_trees_all_close(loaded, params, rtol=1e-6)
    assert report.skipped == ()
    absent = families.ABSENT.get(kind, ())[:1]
    assert [path for path in report.new if not path.endswith(absent)] == []
    assert bool(report.new) == bool(absent)
    assert len({*report.loaded, *report.new}) == len(flatten_dict(params))


def matrix(name):
    """A kernel as (outputs, inputs), with heads side by side."""
    return lambda params: params[name].reshape(params[name].shape[0] if "/out/" not in name else 16, -1).T


def fused(params):
    """BLOOM's query, key and value of a head, then those of the next."""
    sides = [params[f"block_1/attention/{side}/kernel"] for side in ("query", "key", "value")]
    return np.stack(sides, axis=2).reshape(16, -1).T


LAYOUTS = [
    ("roberta", "roberta.encoder.layer.1.attention.self.key.weight", matrix("block_1/attention/key/kernel")),
    ("roberta", "roberta.encoder.layer.1.attention.output.dense.weight", matrix("block_1/attention/out/kernel")),
    ("roberta", "roberta.encoder.layer.1.output.dense.weight", matrix("block_1/mlp/down/kernel")),
    ("marian", "model.decoder.layers.0.encoder_attn.k_proj.weight", matrix("decoder_0/cross/key/kernel")),
    ("marian", "model.decoder.layers.0.self_attn_layer_norm.weight", lambda p: p["decoder_0/norm_attention/scale"]),
    ("marian", "model.decoder.layers.0.final_layer_norm.weight", lambda p: p["decoder_0/norm_mlp/scale"]),
    (
        "vit",
        "vit.embeddings.patch_embeddings.projection.weight",
        lambda p: p["embed/kernel"].reshape(2, 2, 2, 16).transpose(3, 2, 0, 1),
    ),
    ("bloom", "transformer.h.1.self_attention.query_key_value.weight", fused),
    (
        "diffllama",
        "model.layers.0.self_attn.k_proj.weight",
        lambda p: np.concatenate(np.split(p["block_0/attention/key/kernel"], 2, -1), axis=1).reshape(16, -1).T,
    ),
]


@pytest.mark.parametrize(("kind", "theirs", "ours"), LAYOUTS)
def test_names_and_layout_are_transformers(kind, theirs, ours, tmp_path):
    params = {path: np.asarray(x) for path, x in flatten_dict(export(tmp_path, kind)[1], sep="/").items()}
    np.testing.assert_array_equal(load_file(tmp_path / SAFETENSORS)[theirs], ours(params))


ROBERTAS = ("block_1/attention", r"roberta\.encoder\.layer\.1\.attention\.\w+", "dot_product|")
CROSS = ("decoder_0/cross", r"model\.decoder\.layers\.0\.encoder_attn", "")


@pytest.mark.parametrize(
    ("kind", "field", "mechanism", "new", "skipped"),
    [
        ("roberta", "attention", "mlp_kv", {"key", "value"}, {"key", "value"}),
        ("roberta", "attention", "super", {"align_kernel", "align_bias"}, {"key", "value"}),
        more("roberta", "attention", "neural", {"score"}, set()),
        ("marian", "cross_attention", "mlp_marian", {"query", "key", "out"}, {"q_proj", "k_proj", "out_proj"}),
    ],
)
def test_other_mechanisms_take_all_that_fits(kind, field, mechanism, new, skipped, tmp_path):
    ours, theirs, before = ROBERTAS if kind == "roberta" else CROSS
    _, params = export(tmp_path, kind)
    config, fresh = build(kind, seed=7, **{field: before + mechanism})
    loaded, report = pretrained.load(str(tmp_path), config, fresh)
    assert {re.fullmatch(rf"{theirs}\.(\w+)\.\w+", name)[1] for name in report.skipped} == skipped
    assert {re.fullmatch(rf"{ours}/(\w+).*", name)[1] for name in report.new} == new
    kept, given, start = (flatten_dict(tree, sep="/") for tree in (loaded, params, fresh))
    assert {*report.loaded, *report.new} == set(kept)
    for name in kept:
        chex.assert_trees_all_equal(kept[name], start[name] if name in report.new else given[name])


def test_learned_positions_are_cut(tmp_path):
    _, params = export(tmp_path, "roberta")
    loaded, report = load(tmp_path, "roberta", length=5)
    assert report.cut == ("positions/embedding",)
    params["positions"]["embedding"] = params["positions"]["embedding"][:7]
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


def test_a_model_without_a_head_leaves_it_new(tmp_path):
    _, params = export(tmp_path, "roberta")

    def without_head(weights):
        body = {name.removeprefix("roberta."): weights[name] for name in weights if name.startswith("roberta.")}
        weights.clear()
        weights |= body | {"pooler.dense.weight": np.zeros((16, 16), np.float32)}

    edit(tmp_path, without_head)
    loaded, report = load(tmp_path, "roberta")
    assert {name.split("/")[0] for name in report.new} == {"head"}
    assert report.skipped == ("roberta.pooler.dense.weight",)
    chex.assert_trees_all_equal(loaded["block_1"], params["block_1"])


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("roberta", {"vocab_size": 14}, "the vocabulary is 13 but there 14"),
        ("roberta", {"max_position_embeddings": 7}, "the length is 6 but there 5"),
        ("roberta", {"model_type": "albert"}, "of type 'albert'; only 'roberta', 'bert', 'modernbert' can be loaded"),
        ("marian", {"activation_function": "mish"}, "activation_function='mish'; choose one with gelu"),
        ("modernbert", {"local_attention": "wide"}, "has an invalid value"),
        ("modernbert", {"layer_types": ["full_attention"]}, "cannot be loaded; only 2 times sliding_attention or full"),
        ("vit", {"image_size": [6, 4]}, r"image_size=\[6, 4\] and patch_size=2, but only whole"),
        ("diffllama", {"num_key_value_heads": 1}, "heads with 1 key heads cannot be loaded"),
        ("llama", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "part of each head"),
        ("llama", {"tie_word_embeddings": "false"}, "tie_word_embeddings='false', which cannot be loaded"),
        ("deepseek_v2", {"first_k_dense_replace": 1}, r"1 of the 2 layers have experts \(first_k_dense_replace=1\)"),
        more("deepseek_v2", {"v_head_dim": 3}, "Values of a head are 3 wide and keys 4; only equal widths"),
        ("llama", {"model_type": "gpt_oss"}, "'gpt_oss', which cannot be loaded: its MLPs are experts"),
        more("qwen3", {"rms_norm_eps": 1e-5}, "rms_norm_eps=1e-05 also applies to queries and keys"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "a GPT is causal"),
        ("llama", {"intermediate_size": 0}, "intermediate_size=0; only blocks with an MLP can be loaded"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic.* cannot be loaded; only lin"),
    ],
)
def test_what_our_models_have_not_is_refused(kind, change, message, tmp_path):
    export(tmp_path, kind)
    describe(tmp_path, change)
    with pytest.raises(UsageError, match=message):
        load(tmp_path, kind)


def test_other_tokens_do_not_fit(tmp_path):
    config, _ = export(tmp_path, "marian")
    pretrained.check_fit(str(tmp_path), config, families.VOCABULARY, 100, SPECIAL)
    with pytest.raises(UsageError, match="the token end is 2 but there 0"):
        pretrained.check_fit(str(tmp_path), config, families.VOCABULARY, 100, SPECIAL | {"end": 2})


def test_other_classes_get_a_new_head_and_other_images_are_refused(tmp_path):
    config, params = export(tmp_path, "vit")
    fresh = random_params(config.build(families.IMAGES.shape[1:], 7), families.IMAGES, seed=1)["params"]
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
        ("marian", {"cross_attention": "mlp_kv"}, SPECIAL, "model.cross_attention is 'mlp_kv', there 'dot_product'"),
        ("marian", {}, {"pad": 12}, "needs the ids of its special tokens; give that of start, end"),
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
TRANSLATOR = {"depth": 6, "decoder_depth": 6, "width": 512, "heads": 8, "mlp": 2048}
T5 = TRANSLATOR | {"head": 0, "tied_output": True, "gated": False, "attention": "relative"}
PAIR = TOKENS, jnp.array([4]), TOKENS
IMAGE, IMAGE_SHAPE = (jnp.zeros((1, 224, 224, 3)),), (224, 224, 3)


@pytest.mark.parametrize(
    ("kind", "fields", "sizes", "inputs", "count"),
    [
        ("roberta", BASE, (50_265, 512), (TOKENS,), 124_697_433),
        more("bert", BASE, (30_522, 512), (TOKENS,), 109_514_298),
        ("vit", BASE | {"patch": 16}, (IMAGE_SHAPE, 1000), IMAGE, 86_567_656),
        more("bloom", {"depth": 24, "width": 1024, "heads": 16, "mlp": 4096}, (250_880, 6), (TOKENS,), 559_214_592),
        # Whose layers share the biases of 32 buckets and 8 heads.
        ("t5", T5 | {"decoder_attention": "relative"}, (32_128, 32_128, 6, 6), PAIR, 60_506_624 + 2 * 5 * 32 * 8),
        # Without tables of sinusoids, with a bias of the output.
        more("marian", TRANSLATOR, (58_101, 58_101, 512, 512), PAIR, 74_410_496 - 2 * 512 * 512 + 58_101),
    ],
)
def test_parameters_are_as_many_as_the_published_models_have(kind, fields, sizes, inputs, count):
    """Those of roberta-base, bert-base-uncased, vit-base-patch16-224, bloom-560m, t5-small and opus-mt."""
    model = dataclasses.replace(MODELS[kind], **fields).build(*sizes)
    assert count_parameters(jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]) == count


def test_a_file_has_no_fields_that_only_other_families_read(tmp_path):
    """With types of layers, `transformers` makes masks that Llama refuses in a cache of fixed size."""
    export(tmp_path, "llama")
    theirs = json.loads((tmp_path / CONFIG).read_text())
    assert {"attention_bias", "mlp_bias"} <= theirs.keys()  # which Llama reads
    assert not {"layer_types", "sliding_window", "query_pre_attn_scalar", "final_logit_softcapping"} & theirs.keys()


@pytest.mark.parametrize(
    ("kind", "older", "windows"),
    [
        ("gemma3_text", {}, [3, 3, 3, 3, 3, 0, 3]),
        ("gemma3_text", {"sliding_window_pattern": 2}, [3, 0, 3, 0, 3, 0, 3]),
        ("qwen2", {"sliding_window": 4}, [0] * 7),
        ("qwen2", {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 5}, [0, 0, 0, 0, 0, 4, 4]),
    ],
)
def test_older_files_do_not_say_which_layers_slide(kind, older, windows, tmp_path):
    export(tmp_path, kind)
    missing = dict.fromkeys(("layer_types", "use_sliding_window"), ...)
    describe(tmp_path, missing | {"num_hidden_layers": 7} | older)
    fields = pretrained.describe(str(tmp_path)).fields
    assert [row.window for row in resolve(fields["attention"], 7)] == windows


LLAMA_3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
LLAMA_3 |= {"low_freq_factor": 0, "high_freq_factor": 4.0}


def test_rotary_positions_need_all_their_numbers():
    """None is taken for one that is off."""
    for rope in (LLAMA_3, {"rope_theta": 0}, {"rope_theta": True}):
        with pytest.raises(UsageError, match="options must be numbers above 0"):
            decoders.rotary_spec(rope)
    with pytest.raises(UsageError, match="without factor, original_max_position_embeddings, low_freq_factor, high_f"):
        decoders.rotary_spec({"rope_type": "llama3"})


@pytest.mark.parametrize("kind", [jnp.float8_e4m3fn, np.int64])
def test_weights_that_are_no_plain_floats_are_refused(tmp_path, kind):
    config, params = export(tmp_path, "llama")
    edit(tmp_path, lambda weights: weights.update({name: x.astype(kind) for name, x in weights.items()}))
    with pytest.raises(UsageError, match=r"numbers of type \w+; give the model in (bfloat16 or )?float32\."):
        pretrained.load(str(tmp_path), config, params)


def test_the_wide_keys_of_mamba_are_no_heads_of_dot_products(tmp_path):
    export(tmp_path, "mamba2", attention=families.DECODERS["mamba2"]["attention"].replace("state=6", "state=16"))
    _, report = load(tmp_path, "mamba2", attention="dot_product")
    assert report.regrouped == ()
    assert {path.split("/")[2] for path in report.carried} == {"out", "value"}
