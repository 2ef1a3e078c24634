"""Pictures of real runs: every kind is drawn, and shows what the run's model does."""

import json
import shlex

import jax.numpy as jnp
import numpy as np
import pytest

from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps, surfaces
from attention.scores.pairwise import Neural
from models.layers.attention_weights import attention_weights
from tests.analysis.untrained import DATES, untrained
from tests.conftest import ROOT
from tests.sizes import once
from train.decode import trained
from train.decode.translator import Translator
from train.generation.search import Search

pytestmark = pytest.mark.xdist_group(__name__)

RUNS = {
    "vit": {"model__attention": "super", "model__pool": "class_token"},
    "gpt": {"config": "configs/gpt_pydoc.py", "model__attention": "neural(hidden=(3,))|super", "data__context": 16},
}
LINES = [{"step": step, "split": "validation", "loss": 1 / step, "seconds": 0.1 * step} for step in (1, 2, 3)]
SENTENCE = "en de 12/31/1999"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Makes a tiny run of each kind of model before its first step, since training would show nothing more."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("vit", "gpt"):
        untrained(folder / name, model__depth=2, **RUNS[name])
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return folder


@pytest.mark.more
def test_an_images_rollout_is_abnars_with_aligned_weights(runs):
    """It is computed layer by layer in NumPy, with the parameters' W^A."""
    maps = attention_maps.of_images(runs / "vit", [5], step="last")
    task, params = trained.load(runs / "vit", "last")
    image = jnp.asarray(task.sources["test"].split[5]["image"][None] / 255, jnp.float32)
    kept = attention_weights(task.model, params, image)
    assert maps.predictions == (int(task.model.apply({"params": params}, image).argmax()),)
    total = np.eye(17)
    for layer, drawn in enumerate(maps.rollout):
        aligned = kept[f"block_{layer}/attention"][0] @ params[f"block_{layer}"]["attention"]["align_kernel"][None]
        mixed = np.abs(aligned).mean(0)
        total = (mixed / mixed.sum(1, keepdims=True) + np.eye(17)) / 2 @ total
        np.testing.assert_allclose(drawn.reshape(16), total[0, 1:], rtol=1e-4)
        weights = kept[f"block_{layer}/attention"][:, :, 0, 1:]
        np.testing.assert_allclose(maps.layers[layer].reshape(1, 4, 16), weights, rtol=1e-5)


@pytest.mark.more
def test_a_translators_maps_are_its_alignment_and_what_each_side_looks_at(tmp_path):
    dates = tmp_path / "dates"
    untrained(dates, model__depth=2, model__attention="super", **DATES)
    cross = attention_maps.of_translation(dates, SENTENCE, step="last")
    translator = Translator.load(dates, "last")
    (ids,) = translator.tokens([SENTENCE], Search.configured(translator.config.data))
    found = translator.align(SENTENCE, ids)
    assert (cross.rows, cross.columns) == (found.target, found.source)
    np.testing.assert_allclose(cross.layers["decoder_0/cross"].mean(0), found.weights, rtol=1e-6)
    encoder, decoder = (attention_maps.of_translation(dates, SENTENCE, s, "last") for s in ("encoder", "decoder"))
    assert encoder.rows == encoder.columns == cross.columns
    assert (decoder.rows, decoder.columns) == (cross.rows, ["<s>", *cross.rows[:-1]])
    assert not np.triu(decoder.rollout[-1], 1).any()


@pytest.mark.more
def test_the_surface_of_a_run_is_that_of_its_parameters(runs):
    _, params = trained.load(runs / "gpt", "last")
    expected = surfaces.neural(Neural(hidden=(3,)), params["block_0"]["attention"]["score"], 1.0)
    np.testing.assert_array_equal(surfaces.of_run(runs / "gpt", 1.0, step="last").z, expected.z)


COMMANDS = {
    "curves": "curves vit again=vit gpt --metrics loss",
    "examples": "attention --workdir=vit --step=last --examples 3 1 4",
    "text": "attention --workdir=gpt --step=last --text='return it'",
    "surface": "surface --workdir=gpt --step=last",
    "projection": "projection --steps=2",
}


@pytest.mark.parametrize("name", once(COMMANDS, ["curves", "text", "surface"]))
def test_every_kind_is_drawn(runs, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    assert pictures.main([*shlex.split(COMMANDS[name]), f"--out={tmp_path / name}"]) == 0
    assert str(tmp_path / f"{name}.png") in capsys.readouterr().out
    assert "</svg>" in (tmp_path / f"{name}.svg").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            f"comparison {ROOT}/benchmarks/results/digits_cpu.json --only supr",
            "Unknown setting 'supr'. Did you mean 'super'",
        ),
        ("attention --workdir=vit --text=a", "give --examples in place of --text"),
        ("attention --workdir=gpt", "give it a --text to read"),
        ("surface --workdir=vit --step=last", "Layer 0 of vit has no MLP on pairs"),
        ("projection --steps=1 --points=9 --out=vit/config.json/picture", "cannot be drawn"),
    ],
)
def test_mistakes_are_one_sentence(runs, command, message, monkeypatch, refused):
    monkeypatch.chdir(runs)
    assert message in refused(pictures.main, shlex.split(command))
