"""Pictures of real runs: every kind is drawn, and shows what the run's model does."""

import dataclasses
import json
import shlex

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps, heads, surfaces
from attention.scores.pairwise import Neural
from models.layers.attention_weights import attention_weights
from tests.analysis.untrained import untrained
from tests.conftest import ROOT
from tests.sizes import more, once
from train.decode import trained
from train.decode.translator import Translator
from train.generation.search import Search

pytestmark = pytest.mark.xdist_group(__name__)

RUNS = {
    "vit": {"model__attention": "super", "model__pool": "class_token"},
    "gpt": {"config": "configs/gpt_pydoc.py", "model__attention": "neural(hidden=(3,))|super", "data__context": 16},
    "dates": {
        "config": "configs/translate_dates.py",
        "data__source": "dates(sources=('en',), targets=('de',), first=2000, last=2001)",
        "data__validation_split": "validation",
        "data__test_split": "test",
        "model__attention": "super",
        "model__decoder_depth": 1,
    },
}
TEXTS = {
    "mlm": {
        "config": "configs/mlm_pydoc.py",
        "data__tokeniser": "words(size=99, marks=True)",
        "model__padding_token": 0,
    },
    "reviews": {"config": "configs/classify_imdb.py", "model__pool": "class_token", "data__text_column": "text"},
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


@pytest.fixture(scope="module")
def dates(runs):
    """Adds a run of a translator."""
    untrained(runs / "dates", model__depth=2, **RUNS["dates"])
    return runs


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    rows = "text,label\n" + "".join(f"{word} words of a text,{word}\n" for word in ("good", "bad") * 20)
    for split in ("train", "validation", "test"):
        (folder / f"{split}.csv").write_text(rows)
    for name, changes in TEXTS.items():
        source = {"data__source": f"file:{folder}"} if name == "reviews" else {}
        untrained(folder / name, model__depth=2, **changes, **source)
    return folder


@pytest.mark.parametrize(
    ("name", "inputs"), [more("vit", np.ones((1, 8, 8, 1), np.float32)), ("gpt", np.arange(8)[None])]
)
def test_weights_are_those_of_the_definition_and_their_rows_sum_to_1(runs, name, inputs):
    """These are weights of dot products before Super Attention's alignment, and of an MLP on pairs."""
    task, params = trained.load(runs / name, "last")
    found = attention_weights(task.model, params, jnp.asarray(inputs))
    literal = task.model.clone(config=dataclasses.replace(task.model.config, implementation="reference"))
    expected = attention_weights(literal, params, jnp.asarray(inputs))
    assert list(found) == ["block_0/attention", "block_1/attention"]
    for path, weights in found.items():
        np.testing.assert_allclose(weights, expected[path], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.more
def test_an_images_maps_are_the_class_tokens_weights(runs):
    maps = attention_maps.of_images(runs / "vit", [3, 1], split="validation", step="last")
    task, params = trained.load(runs / "vit", "last")
    batch = next(iter(task.eval_batches("validation", 0, 1)))
    kept = attention_weights(task.model, params, jnp.asarray(batch["image"][[3, 1]]))
    for drawn, weights in zip(maps.layers, kept.values(), strict=True):
        np.testing.assert_allclose(drawn.reshape(2, 4, 16), weights[:, :, 0, 1:], rtol=1e-5)
    assert maps.labels == tuple(batch["label"][[3, 1]])
    logits = task.model.apply({"params": params}, jnp.asarray(batch["image"][[3, 1]]))
    assert maps.predictions == tuple(logits.argmax(-1).tolist())
    np.testing.assert_allclose(
        maps.images, batch["image"][[3, 1]] / batch["image"][[3, 1]].max((1, 2, 3), keepdims=True)
    )


@pytest.mark.more
def test_an_images_rollout_is_abnars_with_aligned_weights(runs):
    """It is computed layer by layer in NumPy, with the parameters' W^A."""
    maps = attention_maps.of_images(runs / "vit", [5], step="last")
    task, params = trained.load(runs / "vit", "last")
    image = task.sources["test"].split[5]["image"][None] / 255
    kept = attention_weights(task.model, params, jnp.asarray(image, jnp.float32))
    total = np.eye(17)
    for layer, drawn in enumerate(maps.rollout):
        aligned = kept[f"block_{layer}/attention"][0] @ params[f"block_{layer}"]["attention"]["align_kernel"][None]
        mixed = np.abs(aligned).mean(0)
        total = (mixed / mixed.sum(1, keepdims=True) + np.eye(17)) / 2 @ total
        np.testing.assert_allclose(drawn.reshape(16), total[0, 1:], rtol=1e-4)
    np.testing.assert_allclose(total.sum(1), 1)


def test_a_texts_maps_are_of_its_tokens(runs):
    maps = attention_maps.of_text(runs / "gpt", "return it", step="last")
    assert "".join(maps.rows) == "".join(maps.columns) == "return␣it"
    assert list(maps.layers) == ["block_0/attention", "block_1/attention"]
    for weights in (*maps.layers.values(), maps.rollout[-1]):
        assert weights.shape[-2:] == (9, 9)
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


@pytest.mark.more
@pytest.mark.parametrize(("name", "words"), [("mlm", ["the", "a", "of"]), ("reviews", ["<class>", "a", "text"])])
def test_models_of_whole_texts_look_both_ways(texts, name, words):
    maps = attention_maps.of_text(texts / name, " ".join(word for word in words if word != "<class>"), step="last")
    assert maps.rows == maps.columns == words
    for weights in (*maps.layers.values(), maps.rollout[-1]):
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
        assert (weights > 0).all()


@pytest.mark.more
def test_a_translations_maps_are_its_alignment(dates):
    maps = attention_maps.of_translation(dates / "dates", SENTENCE, step="last")
    translator = Translator.load(dates / "dates", "last")
    (ids,) = translator.tokens([SENTENCE], Search.configured(translator.config.data))
    found = translator.align(SENTENCE, ids)
    assert (maps.rows, maps.columns) == (found.target, found.source)
    np.testing.assert_allclose(maps.layers["decoder_0/cross"].mean(0), found.weights, rtol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize(("stack", "layers", "side"), [("encoder", 2, "columns"), ("decoder", 1, "rows")])
def test_each_side_of_a_translator_looks_at_itself(dates, stack, layers, side):
    cross = attention_maps.of_translation(dates / "dates", SENTENCE, step="last")
    maps = attention_maps.of_translation(dates / "dates", SENTENCE, stack, "last")
    assert maps.rows == getattr(cross, side)
    assert maps.columns == (maps.rows if stack == "encoder" else ["<s>", *maps.rows[:-1]])
    assert list(maps.layers) == [f"{stack}_{layer}/attention" for layer in range(layers)]
    assert maps.rollout[-1].shape == (len(maps.rows), len(maps.rows))
    assert bool(np.triu(maps.rollout[-1], 1).any()) == (stack == "encoder")


def test_the_surface_of_a_run_is_that_of_its_parameters(runs):
    _, params = trained.load(runs / "gpt", "last")
    expected = surfaces.neural(Neural(hidden=(3,)), params["block_0"]["attention"]["score"], 1.0)
    np.testing.assert_array_equal(surfaces.of_run(runs / "gpt", 1.0, step="last").z, expected.z)


COMMANDS = {
    "curves": "curves vit again=vit gpt --metrics loss",
    "heads": "attention --workdir=vit --step=last --examples 3",
    "examples": "attention --workdir=vit --step=last --examples 3 1 4",
    "text": "attention --workdir=gpt --step=last --text='return it'",
    "alignment": f"attention --workdir=dates --step=last --text='{SENTENCE}'",
    "surface": "surface --workdir=gpt --step=last",
    "projection": "projection --steps=2",
}


@pytest.mark.parametrize("name", once(COMMANDS, ["curves", "text", "surface"]))
def test_every_kind_is_drawn(request, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(request.getfixturevalue("dates" if "dates" in COMMANDS[name] else "runs"))
    assert pictures.main([*shlex.split(COMMANDS[name]), f"--out={tmp_path / name}"]) == 0
    assert str(tmp_path / f"{name}.png") in capsys.readouterr().out
    assert matplotlib.image.imread(tmp_path / f"{name}.png").std() > 0.05
    assert "</svg>" in (tmp_path / f"{name}.svg").read_text()


def test_an_image_is_shown_once_with_its_class_and_what_the_model_says(runs):
    maps = attention_maps.of_images(runs / "vit", [3], step="last")
    figure = heads.of_heads(dataclasses.replace(maps, labels=(4,), predictions=(9,)))
    assert [axes.get_title() for axes in figure.axes if axes.get_title().startswith("class")] == [
        "class 4,\npredicted 9"
    ]
    whole = [axes for axes in figure.axes if len(axes.images) == 1]
    assert len(whole) == 1  # beside it, all images lie dimmed under their weights
    np.testing.assert_array_equal(whole[0].images[0].get_array(), maps.images[0, ..., 0])
    bars = [axes for axes in figure.axes if axes.get_label() == "<colorbar>"]
    assert [bar.get_facecolor() for bar in bars] == [(0, 0, 0, 1)] * 2  # a weight of 0 is as dark as over an image


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            f"comparison {ROOT}/benchmarks/results/digits_cpu.json --only supr",
            "Unknown setting 'supr'. Did you mean 'super'",
        ),
        more(
            "attention --workdir=vit --step=last --examples 360", "There is no example 360 of test; there are 0 to 359."
        ),
        more("attention --workdir=vit --step=last --split=tests", "Unknown split 'tests'. Did you mean 'test'"),
        ("attention --workdir=vit --text=a", "give --examples in place of --text"),
        ("attention --workdir=gpt", "give it a --text to read"),
        ("attention --workdir=gpt --step=last --text=aaaaaaaaaaaaaaaaa", "has 17 tokens, but it must have 1 to 16"),
        more("attention --workdir=dates --text=a --step=7", "--step=7 has no checkpoint"),
        ("surface --workdir=vit --step=last", "Layer 0 of vit has no MLP on pairs"),
        more("surface --workdir=dates --step=last", "The model of dates is not a single stack"),
        ("surface --workdir=gpt --step=last --extent=-1", "must be a number above 0"),
        ("projection --points=1", "2 to 1000 points"),
        ("projection --steps=1 --points=9 --out=vit/config.json/picture", "cannot be drawn"),
    ],
)
def test_mistakes_are_one_sentence(request, command, message, monkeypatch, capsys):
    monkeypatch.chdir(request.getfixturevalue("dates" if "dates" in command else "runs"))
    assert pictures.main(shlex.split(command)) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
