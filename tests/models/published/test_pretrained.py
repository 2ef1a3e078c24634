"""Weights of a RoBERTa in and out, without transformers: `tests/parity` has what needs it."""

import dataclasses
import json
import sys

import chex
import jax
import numpy as np
import pytest
import safetensors
from flax import serialization, traverse_util
from safetensors.numpy import load_file, save_file

from attention import UsageError
from models.masked_lm import MaskedLM
from models.published import pretrained
from models.published.hugging_face import BIN, CONFIG, MSGPACK, SAFETENSORS, SHARDS
from tests.models.small import apply, random_params
from tests.models.test_masked_lm import CONFIG as MODEL
from tests.models.test_masked_lm import TOKENS, build
from tests.sizes import more

BLOCK = "roberta.encoder.layer.0.attention.self."


def fresh(length=9, **changes):
    config = dataclasses.replace(MODEL, **changes)
    model = MaskedLM(config, vocabulary=11, length=length)
    return config, random_params(model, TOKENS[:, :length], seed=7)["params"]


@pytest.fixture
def exported(tmp_path):
    """A folder of a model, the model, and its parameters."""
    model, variables = build(depth=2)
    pretrained.export(str(tmp_path / "roberta"), model.config, variables["params"])
    return tmp_path / "roberta", model, variables["params"]


def edit(folder, change):
    """Replaces a folder's weights by what `change` makes of them."""
    weights = load_file(folder / SAFETENSORS)
    change(weights)
    save_file(weights, folder / SAFETENSORS)


def test_names_shapes_and_layout_are_pytorchs(exported):
    folder, _, params = exported
    weights, attention = load_file(folder / SAFETENSORS), params["block_0"]["attention"]
    for name in ("query", "key", "value"):  # x Wᵀ + b, then heads cut side by side
        heads = np.asarray(attention[name]["kernel"])
        np.testing.assert_array_equal(weights[f"{BLOCK}{name}.weight"][8:], heads[:, 1].T)
    out = np.asarray(attention["out"]["kernel"])
    np.testing.assert_array_equal(weights["roberta.encoder.layer.0.attention.output.dense.weight"][:, 8:], out[1].T)
    np.testing.assert_array_equal(
        weights["roberta.encoder.layer.1.output.dense.weight"], np.asarray(params["block_1"]["mlp"]["down"]["kernel"]).T
    )
    assert weights["roberta.embeddings.position_embeddings.weight"].shape == (11, 16)
    described = json.loads((folder / CONFIG).read_text())
    assert (described["model_type"], described["max_position_embeddings"], described["vocab_size"]) == (
        "roberta",
        11,
        11,
    )


@pytest.mark.parametrize(
    ("attention", "skipped", "new"),
    [
        ("mlp_roberta", {"query", "key", "value"}, {"query", "key", "value"}),
        more("mlp_qkv", {"query", "key", "value"}, {"query", "key", "value"}),
        more("mlp_kv", {"key", "value"}, {"key", "value"}),
        ("efficient", {"key", "value"}, set()),
        ("super", {"key", "value"}, {"align_kernel", "align_bias"}),
        ("neural", set(), {"score"}),
        ("mlp_marian", {"query", "key", "output"}, {"query", "key", "out"}),
    ],
)
def test_other_mechanisms_take_all_that_fits(exported, attention, skipped, new):
    folder, _, params = exported
    config, start = fresh(attention=f"dot_product|{attention}")
    loaded, report = pretrained.load(str(folder), config, start)
    kept, given, old = (traverse_util.flatten_dict(tree, sep="/") for tree in (loaded, params, start))
    assert {name.split("attention.")[1].removeprefix("self.").split(".")[0] for name in report.skipped} == skipped
    assert {name.split("/")[2] for name in report.new} == new
    assert all(name.startswith("block_1/attention/") for name in report.new)
    assert {*report.loaded, *report.new} == set(kept)
    for name in kept:
        chex.assert_trees_all_equal(kept[name], old[name] if name in report.new else given[name])


def test_the_report_reads_well(exported):
    folder, *_ = exported
    _, report = pretrained.load(str(folder), *fresh(attention="mlp_kv", length=5))
    layer = "roberta.encoder.layer.*.attention.self"
    parts = ("down/bias", "down/kernel", "norm/bias", "norm/scale", "up/bias", "up/kernel")
    theirs = [f"{layer}.{piece}.{leaf} (2)" for piece in ("key", "value") for leaf in ("bias", "weight")]
    ours = [f"block_*/attention/{piece}/{part} (2)" for piece in ("key", "value") for part in parts]
    carried = [f"block_*/attention/{piece}/{leaf} (2)" for piece in ("out", "query") for leaf in ("bias", "kernel")]
    assert str(report).splitlines() == [
        f"From {folder}: {len(report.loaded)} arrays loaded.",
        "First rows only: positions/embedding.",
        f"Carried over to other mechanisms: {', '.join(carried)}.",
        f"Skipped: {', '.join(theirs)}.",
        f"New: {', '.join(ours)}.",
    ]


def test_shorter_models_take_the_first_positions(exported):
    folder, model, params = exported
    config, start = fresh(length=5)
    loaded, report = pretrained.load(str(folder), config, start)
    assert report.cut == ("positions/embedding",)
    short = apply(MaskedLM(config, 11, length=5), {"params": loaded}, TOKENS[:, :5])
    np.testing.assert_allclose(short, apply(model, {"params": params}, TOKENS[:, :5]), atol=1e-5)


def test_types_and_shardings_stay(exported):
    folder, *_ = exported
    config, start = fresh()
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    start = jax.device_put(jax.tree.map(lambda x: x.astype("bfloat16"), start), sharding)
    loaded, _ = pretrained.load(str(folder), config, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(loaded, start)
    assert {leaf.sharding for leaf in jax.tree.leaves(loaded)} == {sharding}


def test_flax_files_are_read_where_there_are_no_safetensors(exported):
    """The layout is that of transformers' FlaxRobertaForMaskedLM: (inputs, outputs), kernel, scale, embedding."""
    folder, _, params = exported
    (folder / SAFETENSORS).unlink()
    (folder / MSGPACK).write_bytes(serialization.msgpack_serialize(as_flax(params)))
    loaded, report = pretrained.load(str(folder), *fresh())
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()


def as_flax(params):
    params = jax.tree.map(np.asarray, params)
    heads_in = lambda p: {"kernel": p["kernel"].reshape(16, 16), "bias": p["bias"].reshape(-1)}  # noqa: E731

    def layer(block):
        attention = block["attention"]
        return {
            "attention": {
                "self": {name: heads_in(attention[name]) for name in ("query", "key", "value")},
                "output": {"dense": heads_in(attention["out"]), "LayerNorm": block["norm_attention"]},
            },
            "intermediate": {"dense": block["mlp"]["up"]},
            "output": {"dense": block["mlp"]["down"], "LayerNorm": block["norm_mlp"]},
        }

    embeddings = {
        "word_embeddings": params["embed"],
        "position_embeddings": params["positions"],
        "token_type_embeddings": params["token_types"],
        "LayerNorm": params["norm_embedding"],
    }
    head = {"dense": params["head"]["dense"], "layer_norm": params["head"]["norm"], "bias": params["head"]["bias"]}
    layers = {str(i): layer(params[f"block_{i}"]) for i in range(2)}
    return {"roberta": {"embeddings": embeddings, "encoder": {"layer": layers}}, "lm_head": head}


def test_an_encoder_without_a_head_leaves_the_head_new(exported):
    folder, _, params = exported

    def without_head(weights):
        for name in list(weights):
            array = weights.pop(name)
            if name.startswith("roberta."):
                weights[name.removeprefix("roberta.")] = array
        weights["pooler.dense.weight"] = np.zeros((16, 16), np.float32)

    edit(folder, without_head)
    loaded, report = pretrained.load(str(folder), *fresh())
    assert {name.split("/")[0] for name in report.new} == {"head"}
    assert report.skipped == ("roberta.pooler.dense.weight",)
    chex.assert_trees_all_equal(loaded["block_1"], params["block_1"])


def test_copies_of_tied_arrays_are_no_surprise_but_others_are(exported):
    folder, _, params = exported
    decoder = "lm_head.decoder.weight"
    edit(folder, lambda w: w.update({decoder: w["roberta.embeddings.word_embeddings.weight"].copy()}))
    loaded, report = pretrained.load(str(folder), *fresh())
    assert report.skipped == ()
    chex.assert_trees_all_equal(loaded, params)
    edit(folder, lambda w: w.update({decoder: w[decoder] + 1}))
    with pytest.raises(UsageError, match=r"has a lm_head\.decoder\.weight of its own, but the model ties it"):
        pretrained.load(str(folder), *fresh())
    edit(folder, lambda w: w.update({"lm_head.decoder.bias": w.pop("lm_head.bias")}) or w.pop(decoder))
    chex.assert_trees_all_equal(pretrained.load(str(folder), *fresh())[0], params)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"depth": 3}, "model.depth is 3 but there 2"),
        ({"heads": 4, "mlp": 8}, "model.heads is 4 but there 2; model.mlp is 8 but there 32"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon is 1e-06 but there 1e-05"),
        ({"activation": "relu"}, "model.activation is 'relu' but there 'gelu'"),
        ({"norm": "pre"}, "model.norm is 'pre' but there 'post'"),
        ({"positions": "rotary"}, "model.positions is 'rotary' but there 'learned'"),
        ({"attention_bias": False}, "model.attention_bias is False but there True"),
        ({"padding_token": 0}, "model.padding_token is 0 but there 1"),
        ({"token_types": 2}, "model.token_types is 2 but there 1"),
        ({"length": 12}, "the length is 9 but there 7"),
    ],
)
def test_another_architecture_is_refused_with_both_values(exported, changes, sentence):
    folder, *_ = exported
    if "length" in changes:
        described = json.loads((folder / CONFIG).read_text()) | {"max_position_embeddings": 9}
        (folder / CONFIG).write_text(json.dumps(described))
        changes = {}
    with pytest.raises(UsageError) as error:
        pretrained.load(str(folder), *fresh(**changes))
    assert sentence in str(error.value)
    assert str(folder) in str(error.value)


def test_damaged_checkpoints_are_one_sentence(exported):
    folder, *_ = exported
    load = lambda: pretrained.load(str(folder), *fresh())  # noqa: E731
    edit(folder, lambda w: w.update({f"{BLOCK}query.weight": w[f"{BLOCK}query.weight"][:8]}))
    with pytest.raises(
        UsageError, match=r"self\.query\.weight of .* must have the shape \(16, 16\), but it has \(8, 16\)"
    ):
        load()
    edit(folder, lambda w: w.pop(f"{BLOCK}query.weight"))
    with pytest.raises(
        UsageError, match=r"lacks roberta\.encoder\.layer\.\*\.attention\.self\.query\.weight; it is not"
    ):
        load()
    data = (folder / SAFETENSORS).read_bytes()
    (folder / SAFETENSORS).write_bytes(data[: len(data) // 2])
    with pytest.raises(UsageError, match=r"model\.safetensors cannot be read, so it may be damaged"):
        load()
    (folder / SAFETENSORS).unlink()
    (folder / MSGPACK).write_bytes(b"\xc1")
    with pytest.raises(UsageError, match=r"flax_model\.msgpack cannot be read, so it may be damaged"):
        load()
    (folder / MSGPACK).unlink()
    with pytest.raises(UsageError, match=r"has no model\.safetensors or .*flax_model\.msgpack or pytorch_model\.bin"):
        load()
    (folder / CONFIG).write_text('{"model_type": "roberta"}')
    with pytest.raises(UsageError, match=r"config\.json of .* lacks attention_probs_dropout_prob, hidden_act"):
        load()
    (folder / CONFIG).write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is damaged"):
        load()
    (folder / CONFIG).unlink()
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load()


def test_missing_packages_are_one_sentence(exported, monkeypatch):
    folder, *_ = exported
    for package in ("torch", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    (folder / SAFETENSORS).rename(folder / BIN)
    with pytest.raises(
        UsageError, match=r"needs PyTorch: pip install torch, or convert the file to model\.safetensors"
    ):
        pretrained.load(str(folder), *fresh())
    with pytest.raises(UsageError, match=r"no folder 'roberta-base', and .* hub needs a package: pip install hugg"):
        pretrained.describe("roberta-base")
    with pytest.raises(
        UsageError, match=r"There is no folder './roberta'; give one, or a name on the Hugging Face hub"
    ):
        pretrained.describe("./roberta")


def test_without_a_network_the_hub_is_one_sentence(run_python):
    pytest.importorskip("huggingface_hub", reason="the Hugging Face hub's package is not installed")
    code = "from models.published import pretrained\n"
    code += "try:\n  pretrained.describe('a/roberta')\nexcept ValueError as e: print(e)"
    printed = run_python("-c", f"import os; os.environ['HF_HUB_OFFLINE'] = '1'\n{code}").stdout
    assert "no folder 'a/roberta', and config.json of that model cannot be fetched" in printed
    assert "check the network" in printed


def test_the_hub_is_asked_for_each_file_in_turn(exported, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="the Hugging Face hub's package is not installed")
    folder, _, params = exported
    (folder / SAFETENSORS).unlink()
    (folder / MSGPACK).write_bytes(serialization.msgpack_serialize(as_flax(params)))
    asked = []

    def download(repository, file):
        asked.append((repository, file))
        if repository != "a/roberta":
            raise hub.errors.HFValidationError("no such name")
        if not (folder / file).exists():
            raise hub.errors.EntryNotFoundError("404")
        return str(folder / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    loaded, report = pretrained.load("a/roberta", *fresh())
    chex.assert_trees_all_equal(loaded, params)
    assert report.source == "a/roberta"
    assert list(dict.fromkeys(asked)) == [("a/roberta", file) for file in (CONFIG, SAFETENSORS, SHARDS, MSGPACK)]
    with pytest.raises(UsageError, match="There is no folder 'a/bert', and no such public model on the hub"):
        pretrained.describe("a/bert")
    (folder / MSGPACK).unlink()
    with pytest.raises(UsageError, match=r"The model a/roberta on the hub has no model\.safetensors or .*flax_model"):
        pretrained.load("a/roberta", *fresh())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention": "luong_dot|mlp_roberta"}, "model.attention is 'luong_dot|mlp_roberta', there 'dot_product'"),
        ({"attention": "luong_dot"}, "RoBERTa is closest, but model.attention is 'luong_dot', there 'dot_product'"),
        ({"norm": "pre"}, "RoBERTa is closest, but model.norm is 'pre', there 'post'"),
        ({"positions": "sinusoidal"}, "RoBERTa is closest, but model.positions is 'sinusoidal', there 'learned'"),
    ],
)
def test_what_roberta_lacks_is_not_exported(tmp_path, changes, sentence):
    with pytest.raises(UsageError) as error:
        pretrained.export(str(tmp_path / "new"), *fresh(**changes))
    assert sentence in str(error.value)
    assert not (tmp_path / "new").exists()


def test_no_model_is_overwritten(exported):
    folder, model, params = exported
    with pytest.raises(UsageError, match=r"has a config\.json already; choose another"):
        pretrained.export(str(folder), model.config, params)
    (folder.parent / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        pretrained.export(str(folder.parent / "file" / "in"), model.config, params)


def test_nothing_half_written_is_left_of_an_export(exported, tmp_path, monkeypatch):
    _, model, params = exported

    def full(weights, path, metadata):
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\); nothing was left in it"):
        pretrained.export(str(tmp_path / "new"), model.config, params)
    assert not list((tmp_path / "new").iterdir())
