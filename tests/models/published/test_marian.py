"""Weights of a Marian in and out, without transformers: `tests/parity` has what needs it."""

import dataclasses
import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization, traverse_util
from safetensors.numpy import load_file, save_file

from attention import UsageError
from models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from models.layers.positions import sinusoids_in_halves
from models.published import pretrained
from models.published.hugging_face import CONFIG, GENERATION, MSGPACK, SAFETENSORS
from tests.models.small import random_params, small
from tests.sizes import more

MODEL = small(
    EncoderDecoderConfig,
    **{"norm": "post", "positions": "sinusoidal_halves", "activation": "swish", "decoder_depth": 1},
    output_bias=True,
)
SPECIAL = {"pad": 12, "start": 12, "end": 0, "unknown": 1}
SOURCE, LENGTHS = jnp.array([[5, 3, 9, 2, 7, 0], [4, 6, 0, 12, 12, 12]]), jnp.array([6, 3])
TARGET = jnp.array([[12, 8, 2, 5, 11], [12, 3, 10, 12, 12]])


def build(seed=0, length=24, **changes):
    model = EncoderDecoder(dataclasses.replace(MODEL, **changes), 13, 13, length, length)
    return model, random_params(model, SOURCE, LENGTHS, TARGET, seed=seed)["params"]


@pytest.fixture
def exported(tmp_path):
    """A folder of a model, and the model's parameters."""
    model, params = build()
    pretrained.export(str(tmp_path / "marian"), model.config, params, SPECIAL, 24)
    return tmp_path / "marian", params


def load(folder, **changes):
    model, params = build(seed=7, **changes)
    return pretrained.load(str(folder), model.config, params)


def edit(folder, change):
    """Replaces a folder's weights by what `change` makes of them."""
    weights = load_file(folder / SAFETENSORS)
    change(weights)
    save_file(weights, folder / SAFETENSORS)


def test_names_and_layout_are_pytorchs(exported):
    folder, params = exported
    weights = load_file(folder / SAFETENSORS)
    assert len(weights) == len(jax.tree.leaves(params)) == 2 + 2 * 16 + 26
    cross = params["decoder_0"]["cross"]
    layer = "model.decoder.layers.0."
    np.testing.assert_array_equal(weights[f"{layer}encoder_attn.k_proj.weight"][8:], cross["key"]["kernel"][:, 1].T)
    np.testing.assert_array_equal(weights[f"{layer}encoder_attn.out_proj.weight"][:, 8:], cross["out"]["kernel"][1].T)
    for ours, theirs in (("attention", "self_attn"), ("cross", "encoder_attn"), ("mlp", "final")):
        scale = params["decoder_0"][f"norm_{ours}"]["scale"]
        np.testing.assert_array_equal(weights[f"{layer}{theirs}_layer_norm.weight"], scale)
    np.testing.assert_array_equal(
        weights["model.encoder.layers.1.fc1.weight"], params["encoder_1"]["mlp"]["up"]["kernel"].T
    )
    np.testing.assert_array_equal(weights["final_logits_bias"], params["head_bias"][None])
    np.testing.assert_array_equal(weights["model.shared.weight"], params["embed"]["embedding"])


def test_tokens_and_lengths_are_written(exported):
    folder, _ = exported
    config, generation = (json.loads((folder / name).read_text()) for name in (CONFIG, GENERATION))
    for written in (config, generation):
        assert (written["pad_token_id"], written["decoder_start_token_id"], written["eos_token_id"]) == (12, 12, 0)
    assert (config["max_position_embeddings"], generation["max_length"]) == (24, 24)
    assert config["decoder_vocab_size"] == config["vocab_size"] == 13
    assert config["decoder_attention_heads"] == config["encoder_attention_heads"] == 2
    assert generation["bad_words_ids"] == [[12]]


@pytest.mark.parametrize(
    ("mechanism", "skipped", "new"),
    [
        ("mlp_marian", {"q_proj", "k_proj", "out_proj"}, {"query", "key", "out"}),
        more("mlp_qkv", {"q_proj", "k_proj", "v_proj"}, {"query", "key", "value"}),
        more("mlp_kv", {"k_proj", "v_proj"}, {"key", "value"}),
        more("dual_linear", {"k_proj", "v_proj"}, {"key", "value"}),
        ("neural", set(), {"score"}),
        ("super", {"k_proj", "v_proj"}, {"align_kernel", "align_bias"}),
    ],
)
@pytest.mark.parametrize(
    ("field", "ours", "theirs"),
    [
        ("attention", r"encoder_\d/attention", r"encoder\.layers\.\d\.self_attn"),
        more("decoder_attention", "decoder_0/attention", r"decoder\.layers\.0\.self_attn"),
        more("cross_attention", "decoder_0/cross", r"decoder\.layers\.0\.encoder_attn"),
    ],
)
def test_other_mechanisms_take_all_that_fits(exported, mechanism, skipped, new, field, ours, theirs):
    folder, params = exported
    loaded, report = load(folder, **{field: mechanism})
    assert {re.fullmatch(rf"{ours}/(\w+).*", name)[1] for name in report.new} == new
    assert {re.fullmatch(rf"model\.{theirs}\.(\w+)\.\w+", name)[1] for name in report.skipped} == skipped
    kept, given = (traverse_util.flatten_dict(tree, sep="/") for tree in (loaded, params))
    _, start = build(seed=7, **{field: mechanism})
    old = traverse_util.flatten_dict(start, sep="/")
    for name in kept:
        chex.assert_trees_all_equal(kept[name], old[name] if name in report.new else given[name])


def test_the_report_reads_well(exported):
    folder, _ = exported
    _, report = load(folder, cross_attention="luong_general")
    carried = [f"{piece}/{leaf}" for piece in ("key", "out", "query", "value") for leaf in ("bias", "kernel")]
    assert str(report).splitlines() == [
        f"From {folder}: {len(report.loaded)} arrays loaded.",
        f"Carried over to other mechanisms: {', '.join(f'decoder_*/cross/{name}' for name in carried)}.",
        "New: decoder_*/cross/score/kernel.",
    ]


def test_longer_models_load_as_sinusoids_have_no_length(exported):
    folder, params = exported
    chex.assert_trees_all_equal(load(folder, length=50)[0], params)


def test_flax_files_are_read_where_there_are_no_safetensors(exported):
    """The layout is that of transformers' FlaxMarianMTModel: (inputs, outputs), kernel, scale, embedding."""
    folder, params = exported
    weights = load_file(folder / SAFETENSORS)
    (folder / SAFETENSORS).unlink()
    tree = {"final_logits_bias": weights.pop("final_logits_bias")}
    for name, array in weights.items():
        *path, leaf = name.split(".")
        kind = "embedding" if "shared" in path else "scale" if "norm" in path[-1] else "kernel"
        key = (*path, kind if leaf == "weight" else leaf)
        tree |= {key: array.T if key[-1] == "kernel" else array}
    flat = {key if isinstance(key, tuple) else (key,): array for key, array in tree.items()}
    (folder / MSGPACK).write_bytes(serialization.msgpack_serialize(traverse_util.unflatten_dict(flat)))
    loaded, report = load(folder)
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()


def test_what_older_files_have_besides(exported):
    """Copies of the embeddings and tables of positions, as in the published `pytorch_model.bin`."""
    folder, params = exported
    tables = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]

    def as_published(weights):
        for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
            weights[name] = weights["model.shared.weight"].copy()
        weights |= {name: np.array(sinusoids_in_halves(24, 16)) for name in tables}

    edit(folder, as_published)
    loaded, report = load(folder)
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()
    edit(folder, lambda weights: weights.update({tables[1]: weights[tables[1]][:, ::-1].copy()}))
    with pytest.raises(
        UsageError, match=r"has a model\.decoder\.embed_positions\.weight that is no table of sinusoids"
    ):
        load(folder)
    edit(folder, lambda weights: weights.update({"lm_head.weight": weights["lm_head.weight"] + 1}))
    with pytest.raises(UsageError, match=r"has a lm_head\.weight of its own, but the model ties it to model\.shared"):
        load(folder)


def test_a_model_without_a_head_leaves_the_bias_new(exported):
    folder, params = exported

    def without_head(weights):
        del weights["final_logits_bias"]
        for name in list(weights):
            weights[name.removeprefix("model.")] = weights.pop(name)

    edit(folder, without_head)
    loaded, report = load(folder)
    assert report.new == ("head_bias",)
    chex.assert_trees_all_equal(loaded["decoder_0"], params["decoder_0"])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"decoder_depth": 2}, "model.decoder_depth is 2 but there 1"),
        ({"scale_embeddings": False}, "model.scale_embeddings is False but there True"),
        ({"output_bias": False}, "model.output_bias is False but there True"),
        ({"positions": "sinusoidal"}, "model.positions is 'sinusoidal' but there 'sinusoidal_halves'"),
    ],
)
def test_another_architecture_is_refused_with_both_values(exported, changes, sentence):
    folder, _ = exported
    with pytest.raises(UsageError) as error:
        load(folder, **changes)
    assert sentence in str(error.value)


def test_old_files_say_less(exported):
    folder, params = exported
    config = json.loads((folder / CONFIG).read_text())
    for name in ("tie_word_embeddings", "share_encoder_decoder_embeddings", "decoder_vocab_size"):
        del config[name]
    (folder / CONFIG).write_text(json.dumps(config | {"add_bias_logits": False, "num_hidden_layers": 2}))
    chex.assert_trees_all_equal(load(folder)[0], params)


def test_other_tokens_do_not_fit(exported):
    folder, _ = exported
    pretrained.check_fit(str(folder), MODEL, 13, 100, SPECIAL)
    with pytest.raises(UsageError, match="the token end is 2 but there 0"):
        pretrained.check_fit(str(folder), MODEL, 13, 100, SPECIAL | {"end": 2})
    with pytest.raises(UsageError, match="the token start is None but there 12"):
        pretrained.check_fit(str(folder), MODEL, 13, 100, {"pad": 12, "end": 0})


@pytest.mark.parametrize(
    ("changes", "special", "sentence"),
    [
        ({"cross_attention": "mlp_kv"}, SPECIAL, "but model.cross_attention is 'mlp_kv', there 'dot_product'"),
        ({"norm": "pre"}, SPECIAL, "Marian is closest, but model.norm is 'pre', there 'post'"),
        ({"norm_epsilon": 1e-6}, SPECIAL, "model.norm_epsilon is 1e-06, there 1e-05"),
        ({}, {"pad": 12}, "needs the ids of its special tokens; give that of start, end"),
        ({}, None, "give that of pad, start, end"),
    ],
)
def test_what_marian_lacks_is_not_exported(tmp_path, changes, special, sentence):
    model, params = build(**changes)
    with pytest.raises(UsageError) as error:
        pretrained.export(str(tmp_path / "new"), model.config, params, special)
    assert sentence in str(error.value)
    assert not (tmp_path / "new").exists()
