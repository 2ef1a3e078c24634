"""From work directories to a page: its weights are the model's, and mistakes are one sentence."""

import base64
import gzip
import json
import re
import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from analysis.explore import __main__ as explore
from analysis.explore import extraction, page
from analysis.pictures.attention_maps import mixing
from models.layers.attention_weights import attention_weights
from tests.analysis.explore.looks import looks
from tests.analysis.untrained import DATES, untrained
from train.decode import trained

pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]
RUNS = {
    "gpt": {"config": "configs/gpt_pydoc.py", "model__attention": "delta|super", "data__context": 16},
    "words": {"config": "configs/gpt_pydoc.py", "data__tokeniser": "words(size=99)", "data__context": 16},
    "vit": {"model__attention": "neural|linear", "model__pool": "class_token"},
    "vit too": {"model__attention": "delta|super"},
    "dates": DATES,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Finds the folder of a run, which is made at first use."""
    folder = tmp_path_factory.mktemp("runs")

    def made(name):
        if not (folder / name).exists():
            untrained(folder / name, model__depth=2, **RUNS[name])
        return folder / name

    return made


@pytest.fixture(scope="module")
def looked(run):
    """What the language model looks at while it reads a text."""
    return extraction.of_run(run("gpt"), extraction.Wanted(texts=("return it",), step="last"))


def opened(text):
    """Reads the data and the bytes of a page."""
    data = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])
    packed = re.search(r'id="weights">(.*?)</script>', text)[1]
    return data, gzip.decompress(base64.b64decode(packed))


def weights_of(place, shape, store):
    count = int(np.prod(shape))
    numbers = np.frombuffer(store, np.int8 if place["signed"] else np.uint8, count, place["at"])
    return numbers.reshape(shape) * place["step"]


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_a_byte_is_at_most_half_a_step_away(low):
    weights = np.random.default_rng(0).uniform(low, 1, (5, 7)).astype(np.float32)
    numbers, step = page.quantised(weights)
    assert numbers.itemsize == 1
    assert np.abs(numbers * step - weights).max() <= step / 2 * 1.0001
    assert step == pytest.approx(np.abs(weights).max() / (127 if low else 255))
    assert page.quantised(np.zeros(3))[0].tolist() == [0, 0, 0]


def test_a_page_of_a_text_has_the_weights_of_the_model(run, looked):
    """It shows the effective weights of delta, and those of Super Attention before and after W^A."""
    data, store = opened(page.of([looked]))
    assert [look["title"] for look in data["examples"]] == ["return it", "random tokens, twice (shows induction)"]
    assert looked.examples[-1].read[:8] == looked.examples[-1].read[8:]
    stacks = data["runs"][0]["examples"][0]["stacks"]
    assert [stack["name"] for stack in stacks] == ["self-attention", "self-attention, times W^A"]
    assert stacks[0]["columns"] == list("return␣it")
    assert [layer["name"] for layer in stacks[0]["layers"]] == ["delta", "super"]
    task, params = trained.load(run("gpt"), "last")
    expected = attention_weights(task.model, params, jnp.asarray(list(b"return it"))[None])
    for number, weights in enumerate(expected.values()):
        *heads, mean, rolled = stacks[0]["layers"][number]["maps"]
        for head, place in enumerate(heads):
            shown = weights_of(place, (9, 9), store)
            np.testing.assert_allclose(shown, weights[0, head], atol=0.51 * place["step"])
        np.testing.assert_allclose(weights_of(mean, (9, 9), store), weights[0].mean(0), atol=0.51 * mean["step"])
        np.testing.assert_allclose(weights_of(rolled, (9, 9), store).sum(-1), 1, atol=0.05)
    kernel = params["block_1"]["attention"]["align_kernel"]
    mixed = mixing(expected["block_1/attention"][0], kernel, causal=True)
    place = stacks[1]["layers"][1]["maps"][0]
    np.testing.assert_allclose(weights_of(place, (9, 9), store), mixed[0], atol=0.51 * place["step"])


def test_a_language_model_says_what_it_expects_next(run, looked):
    look = looked.examples[0]
    task, params = trained.load(run("gpt"), "last")
    logits = jax.jit(task.model.apply)({"params": params}, jnp.asarray(list(b"return it"))[None])[0]
    chances = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for text, row in zip(look.expected, chances, strict=True):
        assert [int(x) for x in re.findall(r" (\d+)%", text)] == pytest.approx(100 * np.sort(row)[::-1][:3], abs=0.51)


def test_a_page_of_translations_has_three_kinds_of_attention(run):
    found = extraction.of_run(run("dates"), extraction.Wanted(indices=(0,), step="last"))
    (look,) = found.examples
    assert list(look.maps) == ["target to source", "encoder", "decoder"]
    assert look.maps["target to source"].columns == look.maps["encoder"].rows == look.read


def test_a_gallery_has_the_examples_of_all_tasks_through_each_mechanism(run, tmp_path, capsys):
    out = tmp_path / "gallery.html"
    folders = [str(run("gpt")), str(run("vit too"))]
    flags = ["--gallery", "--step=last", "--examples", "3", "--tokens=8", f"--out={out}"]
    assert explore.main([*flags, "--workdir", *folders]) == 0
    assert "2 examples of 1 mechanism." in capsys.readouterr().out
    data, _ = opened(out.read_text(encoding="utf-8"))
    assert [one["name"] for one in data["runs"]] == ["delta|super"]
    assert data["examples"][1]["title"] == "test 3: class 7"
    assert len(data["runs"][0]["examples"][0]["stacks"][0]["rows"]) == 8


MISTAKES = [
    (
        "--workdir={gpt} {vit} --gallery --step=last",
        "No run of language_modelling has neural|linear, unlike another task",
    ),
    ("--workdir={gpt} {gpt}/../gpt --gallery --step=last", "are both runs of language_modelling with delta|super"),
    ("--workdir={gpt} --step=last --text=aaaaaaaaaaaaaaaaa", "has 17 tokens, but it must have 1 to 16"),
    ("--workdir={gpt} --step=last --examples 99999", "There is no example 99999 of test"),
    ("--workdir={vit} --text=a", "give --examples in place of --text"),
    ("--workdir={gpt} {words} --step=last --text=an", "do not read 'an' as the same tokens"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES)
def test_mistakes_are_one_sentence(run, command, message, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    names = {name: run(name) for name in re.findall(r"\{(\w+)\}", command)}
    assert message in refused(explore.main, shlex.split(command.format(**names)))


def test_weights_that_are_not_finite_or_too_many_are_refused(monkeypatch):
    one = looks()
    one.examples[0].maps["self-attention"].layers["block_0/attention"][0, 3, 1] = np.nan
    with pytest.raises(page.UsageError, match="The weights of one are not finite; give an earlier --step"):
        page.of([one])
    monkeypatch.setattr(page, "LARGEST", 100)
    with pytest.raises(page.UsageError, match="fewer --examples, fewer --tokens or fewer runs"):
        page.of([looks()])
