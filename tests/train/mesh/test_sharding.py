"""Losses are the same on one device and on eight, whatever is split; what does not divide is refused first."""

import contextlib
import functools
import io
import json
import math
import re
import types

import chex
import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from attention import UsageError
from tests import storm
from tests.sizes import once
from tests.train.conftest import arguments, record
from tests.train.mesh.on_meshes import MODELS
from train import loading, main, setup
from train.config.schema import MeshConfig
from train.dry_run.dry import DryRun
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.mesh.sharding import RULES, make_mesh, parameter_spec

pytestmark = pytest.mark.xdist_group(__name__)

OPTIONS = {
    "train__length": "20 steps",
    "train__log_every": "1 step",
    "train__eval_every": "20 steps",
    "train__checkpoint_every": "10 steps",
    "data__train_transforms": "pad_crop(padding=1)|rotate(degrees=10)",
    "model__dropout": 0.2,
    "model__attention_dropout": 0.2,
}
ALL = ("8x1x1", "2x4x1", "2x2x2", "1x1x8")


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("one") / "run"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main.main(arguments(workdir, **OPTIONS)) == 0
    return workdir, printed.getvalue()


def losses(workdir):
    return np.array([line["loss"] for line in record(workdir) if line["split"] == "train"])


@pytest.mark.more
def test_a_whole_run_on_eight_devices_is_that_on_one(one_device, tmp_path, run_python):
    alone, printed = one_device
    axes = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}
    done = run_python("-m", "train.main", *arguments(tmp_path / "run", **OPTIONS, **axes), devices=8)
    assert "mesh data 2 x fsdp 2 x tensor 2" in done.stdout
    assert "Whole on every device: " in done.stdout
    assert "Whole on every device: " not in printed
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=0, atol=1e-5)
    assert len(losses(alone)) == 20
    assert losses(alone)[-1] < losses(alone)[0]
    for line, own in zip(record(tmp_path / "run"), record(alone), strict=True):
        assert line.keys() == own.keys()
        np.testing.assert_allclose(list(line.values())[2:], list(own.values())[2:], rtol=1e-4)
    assert {line["split"] for line in record(alone)} == {"train", "validation", "test"}
    for step in (10, 20):
        chex.assert_trees_all_close(
            *(storm.arrays(run / "checkpoints" / str(step)) for run in (tmp_path / "run", alone)), rtol=1e-3, atol=1e-5
        )


@pytest.mark.more
@pytest.mark.parametrize("model", ["gpt", *(pytest.param(m, marks=pytest.mark.long) for m in MODELS if "gpt" not in m)])
def test_models_train_alike_on_every_mesh(run_python, model):
    done = run_python("-m", "tests.train.mesh.on_meshes", model, "1x1x1", *ALL, devices=8)
    found = {mesh: np.array(values) for mesh, values in json.loads(done.stdout).items()}
    alone = found.pop("1x1x1")
    assert len(np.unique(alone)) == 20
    for mesh, values in found.items():
        np.testing.assert_allclose(values, alone, rtol=0, atol=1e-5, err_msg=mesh)


SHARED = ("gpt of one layer", "gpt", "masked_lm", "text_classifier", "encoder_decoder")


@pytest.mark.more
@pytest.mark.parametrize("model", SHARED)
def test_devices_that_share_tokens_train_as_one(run_python, model):
    done = run_python("-m", "tests.train.mesh.on_meshes", model, "1x1x1", "2x1x1x4", devices=8)
    alone, shared = json.loads(done.stdout).values()
    np.testing.assert_allclose(shared, alone, rtol=0, atol=1e-5)


def mesh_of(*sizes):
    """Makes as much of a mesh as rules and checks read."""
    axes = dict(zip(("data", "fsdp", "tensor", "context"), sizes, strict=False))
    return types.SimpleNamespace(shape=axes, size=math.prod(sizes))


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("params/block_3/attention/query/kernel", (64, 4, 16), P("fsdp", "tensor", None)),
        ("opt_state/1/mu/block_3/attention/out/kernel", (4, 16, 64), P("tensor", None, "fsdp")),
        ("params/block_0/attention/align_kernel", (16, 16), P("fsdp", None)),
        ("params/block_0/attention/query/kernel", (63, 3, 16), P(None, None, None)),
        ("params/positions/table", (1, 16, 64), P(None, None, "fsdp")),
        ("params/block_0/attention/out/up/kernel", (4, 16, 64), P("tensor", None, "fsdp")),
        ("params/block_0/attention/out/down/kernel", (128, 64), P("tensor", "fsdp")),
        ("params/block_0/attention/score/layer_0_kernel", (32, 32, 4, 2), P("fsdp", None, None, None)),
        ("params/block_0/attention/score/layer_0_kernel", (4, 2), P()),
        ("params/embed_target/embedding", (400, 64), P("tensor", "fsdp")),
        ("params/embed/embedding", (401, 64), P(None, "fsdp")),
        ("params/block_0/attention/query/lora_a", (64, 8), P("fsdp", None)),
        ("params/block_0/attention/query/lora_b", (8, 4, 16), P(None, "tensor", None)),
        ("params/block_0/attention/out/lora_a", (4, 16, 8), P("tensor", None, None)),
        ("params/block_0/attention/out/lora_b", (8, 64), P(None, "fsdp")),
        ("params/block_0/mlp/up/lora_b", (8, 128), P(None, "tensor")),
        ("params/block_0/mlp/down/lora_a", (128, 8), P("tensor", None)),
        ("params/block_0/attention/score/kernel", (4, 16, 16), P(None, None, None)),
        ("params/block_0/attention/score/table", (16, 16), P("fsdp", None)),
        ("params/block_0/attention/score/rows", (4, 16, 8), P(None, "fsdp", None)),
        ("params/block_0/attention/score/layer_0_bias", (32, 32, 4), P("fsdp", None, None)),
        ("params/block_0/attention/down_kernel", (16, 4), P("fsdp", None)),
        ("params/block_0/mlp/gate/bias", (128,), P("tensor")),
        ("params/block_0/mlp/down/bias", (64,), P(None)),
        ("params/head_bias", (400,), P("tensor")),
        ("params/positions/embedding", (18, 64), P(None, "fsdp")),
        ("params/conv_stem/kernel", (3, 3, 3, 16), P(None, None, None, "fsdp")),
        ("params/block_0/attention/output_gate/kernel", (64, 4, 1), P("fsdp", "tensor", None)),
        ("params/block_0/attention/output_gate/bias", (4, 1), P("tensor", None)),
        ("params/of_a_model_to_come/kernel", (64, 6), P("fsdp", None)),
        ("params/of_a_model_to_come/lora_b", (8, 6), P(None, "fsdp")),
        ("params/block_0/norm_mlp/scale", (64,), P(None)),
        ("params/stack/attention/query/kernel", (6, 64, 4, 16), P(None, "fsdp", "tensor", None)),
        ("step", (), P()),
    ],
)
def test_rules(path, shape, spec):
    assert parameter_spec(path, shape, mesh_of(1, 2, 4)) == spec


# Of every family and every mechanism that has parameters of its own.
SPECS = (
    "vit_cifar100.py:super|mlp_qkv|dual_linear|decomposable",
    "vit_imagenet.py",
    "vit_cifar_neural.py:neural(dim=3)",
    "gpt_wikitext103.py:neural|additive|luong_general|luong_concat|gaussian|delta|linear",
    "gpt_wikitext103.py:positional|positional_factorised|neural(pairs='unique')",
    "mlm_wikitext103.py:mlp_roberta",
    "classify_imdb.py:super",
    "classify_amazon.py",
    "translate_europarl.py",
    "translate_iwslt.py:mlp_marian",
    "seq2seq_dates.py",
    "seq2seq_dates.py:location",
    "seq2seq_dates.py:qkv",
    "seq2seq_dates.py:luong_general",
    "cnn_digits.py:cbam(ratio=4)",
)
LARGE = 2**13
# Not split: lengths and vocabularies that are odd.
WHOLE = re.compile(r"align_kernel \(257, 257\)|head(/|_)bias \((50265|58101),\)")


@functools.cache
def parameters(spec, lora=""):
    """Lists the shapes of a model with one block for each mechanism, by path."""
    layers = spec.count("|") + 1
    depths = {"model.depth": str(layers)} | ({"model.decoder_depth": str(layers)} if "translate" in spec else {})
    config, _ = loading.resolve(
        f"configs/{spec}", {} if spec.startswith(("seq2seq", "cnn")) else depths | {"optimizer.lora": lora}
    )
    flat = jax.tree_util.tree_leaves_with_path(DryRun.of(config).state.params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf.shape for path, leaf in flat}


@pytest.mark.parametrize("spec", once(SPECS, SPECS[:1]))
def test_what_is_large_is_split(spec):
    mesh, shapes = mesh_of(2, 2, 2), parameters(spec)
    large = {path: shape for path, shape in shapes.items() if np.prod(shape) > LARGE}
    whole = [f"{path} {shape}" for path, shape in large.items() if not any(parameter_spec(path, shape, mesh))]
    assert [name for name in whole if not WHOLE.search(name)] == []


@pytest.mark.more
def test_no_rule_is_dead():
    paths = [path for lora in ("", "lora(on='.')") for spec in SPECS for path in parameters(spec, lora)]
    first = {next(pattern for pattern, _ in RULES if re.search(pattern, path)) for path in paths}
    assert first == {pattern for pattern, _ in RULES}


def test_an_axis_may_take_the_rest():
    assert dict(make_mesh(MeshConfig(-1, 1, 1)).shape) == {"data": jax.device_count(), "fsdp": 1, "tensor": 1}


def test_the_batch_of_training_need_not_divide_to_evaluate():
    config, _ = loading.resolve("configs/vit_digits.py", {"train.accumulate": "5"})
    mesh = make_mesh(config.mesh)
    setup.check_evaluation(config, mesh)
    with pytest.raises(UsageError, match=r"data.batch_size=32 does not divide over .* x train.accumulate = 5"):
        setup.check_training(config, Replicas([0], mesh))


def test_replicas_of_one_device_each_split_no_batch_but_of_texts_to_write(monkeypatch):
    mesh = mesh_of(2, 1, 1)
    monkeypatch.setattr(sharding, "reads_its_own", lambda mesh, axes: True)
    changes = {"data.batch_size": "5", "data.eval_batch_size": "7", "train.replicas": "2"}
    setup.check_training(loading.resolve("configs/vit_digits.py", changes)[0], Replicas([0, 1], mesh))
    config, _ = loading.resolve("configs/seq2seq_dates.py", changes)
    with pytest.raises(UsageError, match=r"data.eval_batch_size=7 does not divide over mesh.data x mesh.fsdp = 2"):
        setup.check_training(config, Replicas([0, 1], mesh))


REFUSED = [
    ("gpt_pydoc.py:super", {}, 16, "model.attention has super, which needs whole sequences on each device"),
    ("gpt_pydoc.py:dot_product|linear", {}, 16, "model.attention has linear"),
    ("gpt_pydoc.py:positional", {}, 16, "model.attention has positional"),
    ("gpt_pydoc.py:neural(pairs='unique')", {}, 16, "model.attention has neural"),
    ("gpt_pydoc.py:sigmoid", {}, 16, "model.attention has sigmoid"),
    ("gpt_pydoc.py", {"model.implementation": "auto|xla"}, 16, "model.implementation has 'xla'"),
    ("seq2seq_dates.py", {}, 16, "model.name='seq2seq' has no attention among tokens"),
    ("gpt_pydoc.py", {"train.replicas": "2"}, 16, "set train.replicas=1"),
    ("gpt_pydoc.py", {}, 18, "the number of tokens=18 does not divide over mesh.context = 4; make it a multiple of 4"),
]


@pytest.mark.parametrize(("file", "changes", "tokens", "message"), REFUSED)
def test_what_cannot_share_tokens_is_one_sentence(file, changes, tokens, message):
    check_context(file, changes, tokens, 1)
    with pytest.raises(UsageError, match=re.escape(message)):
        check_context(file, changes, tokens, 4)


@pytest.mark.parametrize(
    "file", once(["gpt_pydoc.py:neural|sink|alibi|differential", "mlm_pydoc.py", "translate_dates.py"], [])
)
def test_others_can_share_tokens(file):
    check_context(file, {}, 16, 4)


def check_context(file, changes, tokens, count):
    task = types.SimpleNamespace(lengths=lambda: {"the number of tokens": tokens})
    setup.check_context(loading.resolve(f"configs/{file}", changes)[0], task, mesh_of(1, 1, 1, count))
