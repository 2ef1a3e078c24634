"""Files of published models: every format, damaged ones, what is missing, the hub, and what an export leaves behind."""

import json
import sys

import chex
import jax
import pytest
import safetensors
from flax import serialization
from safetensors.numpy import load_file, save_file

from attention import UsageError
from models.published import pretrained
from models.published.hugging_face import BIN, CONFIG, MSGPACK, SAFETENSORS, SHARDS
from tests.models.published.families import as_flax, build, describe, edit, export, load


@pytest.fixture
def exported(tmp_path):
    """A folder of a RoBERTa, and its parameters."""
    _, params = export(tmp_path / "roberta", "roberta")
    return tmp_path / "roberta", params


def test_types_and_shardings_stay(exported):
    folder, _ = exported
    config, start = build("roberta")
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    start = jax.device_put(jax.tree.map(lambda x: x.astype("bfloat16"), start), sharding)
    loaded, _ = pretrained.load(str(folder), config, start)
    chex.assert_trees_all_equal_shapes_and_dtypes(loaded, start)
    assert {leaf.sharding for leaf in jax.tree.leaves(loaded)} == {sharding}


def in_flax(folder):
    (folder / MSGPACK).write_bytes(serialization.msgpack_serialize(as_flax(folder)))
    (folder / SAFETENSORS).unlink()


def in_several_files(folder):
    weights = load_file(folder / SAFETENSORS)
    files = {name: f"model-{index % 2}.safetensors" for index, name in enumerate(sorted(weights))}
    for file in set(files.values()):
        save_file({name: weights[name] for name in files if files[name] == file}, folder / file)
    (folder / SHARDS).write_text(json.dumps({"weight_map": files}))
    (folder / SAFETENSORS).unlink()


def with_the_heads_bias_in_its_decoder(folder):
    edit(folder, lambda weights: weights.update({"lm_head.decoder.bias": weights.pop("lm_head.bias")}))


def that_say_less(folder):
    fields = ("tie_word_embeddings", "share_encoder_decoder_embeddings", "decoder_vocab_size")
    describe(folder, dict.fromkeys(fields, ...) | {"add_bias_logits": False, "num_hidden_layers": 2})


OTHERS = [("roberta", change) for change in (in_flax, in_several_files, with_the_heads_bias_in_its_decoder)]


@pytest.mark.parametrize(("kind", "changed"), [*OTHERS, ("marian", that_say_less)])
def test_other_files_of_the_same_model_are_read_as_it(kind, changed, tmp_path):
    _, params = export(tmp_path, kind)
    changed(tmp_path)
    loaded, report = load(tmp_path, kind)
    chex.assert_trees_all_equal(loaded, params)
    assert report.skipped == ()


QUERY = "roberta.encoder.layer.0.attention.self.query.weight"
# What is done to a folder, one after the other, and what is said then.
DAMAGES = [
    (
        lambda folder: edit(folder, lambda w: w.update({QUERY: w[QUERY][:8]})),
        r"self\.query\.weight of .* must have the shape \(16, 16\), but it has \(8, 16\)",
    ),
    (
        lambda folder: edit(folder, lambda w: w.pop(QUERY)),
        r"lacks roberta\.encoder\.layer\.\*\.attention\.self\.query\.weight; it is incomplete",
    ),
    (
        lambda folder: (folder / SAFETENSORS).write_bytes((folder / SAFETENSORS).read_bytes()[:5000]),
        r"model\.safetensors cannot be read, so it may be damaged",
    ),
    (
        lambda folder: (folder / SAFETENSORS).unlink(),
        r"has no model\.safetensors or .*flax_model\.msgpack or pytorch_model\.bin",
    ),
    (
        lambda folder: (folder / CONFIG).write_text('{"model_type": "roberta"}'),
        r"config\.json of .* lacks attention_probs_dropout_prob, hidden_act",
    ),
    (lambda folder: (folder / CONFIG).write_text("{"), r"config\.json is damaged"),
    (lambda folder: (folder / CONFIG).unlink(), r"has no config\.json"),
]


def test_damaged_checkpoints_are_one_sentence(exported):
    folder, _ = exported
    for damage, message in DAMAGES:
        damage(folder)
        with pytest.raises(UsageError, match=message):
            load(folder, "roberta")


def test_missing_packages_are_one_sentence(exported, monkeypatch):
    folder, _ = exported
    for package in ("torch", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, package, None)
    (folder / SAFETENSORS).rename(folder / BIN)
    with pytest.raises(UsageError, match=r"needs PyTorch: pip install torch, or convert the file to model\.safetenso"):
        load(folder, "roberta")
    with pytest.raises(UsageError, match=r"no folder 'roberta-base', and .* hub needs a package: pip install hugg"):
        pretrained.describe("roberta-base")
    with pytest.raises(UsageError, match=r"There is no folder './roberta'; give one, or a name on the Hugging Face h"):
        pretrained.describe("./roberta")


def test_the_hub_is_asked_for_each_file_in_turn(exported, monkeypatch):
    hub = pytest.importorskip("huggingface_hub", reason="the Hugging Face hub's package is not installed")
    folder, params = exported
    in_flax(folder)
    asked = []

    def download(repository, file):
        asked.append((repository, file))
        if repository == "a/far":
            raise hub.errors.LocalEntryNotFoundError("no network")
        if repository != "a/roberta":
            raise hub.errors.HFValidationError("no such name")
        if not (folder / file).exists():
            raise hub.errors.EntryNotFoundError("404")
        return str(folder / file)

    monkeypatch.setattr(hub, "hf_hub_download", download)
    loaded, report = load("a/roberta", "roberta")
    chex.assert_trees_all_equal(loaded, params)
    assert report.source == "a/roberta"
    assert list(dict.fromkeys(asked)) == [("a/roberta", file) for file in (CONFIG, SAFETENSORS, SHARDS, MSGPACK)]
    with pytest.raises(UsageError, match="There is no folder 'a/bert', and no such public model on the hub"):
        pretrained.describe("a/bert")
    with pytest.raises(UsageError, match=r"config\.json of that model cannot be fetched .* check the network"):
        pretrained.describe("a/far")
    (folder / MSGPACK).unlink()
    with pytest.raises(UsageError, match=r"The model a/roberta on the hub has no model\.safetensors or .*flax_model"):
        load("a/roberta", "roberta")


def test_no_model_is_overwritten(exported):
    folder, _ = exported
    with pytest.raises(UsageError, match=r"has a config\.json already; choose another"):
        export(folder, "roberta")
    (folder.parent / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        export(folder.parent / "file" / "in", "roberta")


def test_nothing_half_written_is_left_of_an_export(tmp_path, monkeypatch):
    def full(weights, path, metadata):
        path.write_bytes(b"half")
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.raises(UsageError, match=r"cannot be written \(No space left on device\); nothing was left in it"):
        export(tmp_path / "new", "roberta")
    assert not list((tmp_path / "new").iterdir())
