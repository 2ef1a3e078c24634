"""Runs on text, killed and started again bit for bit; their tokeniser, their best step, and what they generate."""

import functools
import json
import shutil

import numpy as np
import pytest

from tests.storm import assert_same
from tests.train.conftest import arguments, record
from train import evaluate, generate, loading, main
from train.data import tokenisers
from train.decode.continuations import Texts

pytestmark = pytest.mark.xdist_group(__name__)

CONFIGS = {
    "gpt_pydoc": {"data__eval_stride": 8},
    "mlm_pydoc": {"data__tokeniser": "words(size=500, marks=True)", "model__padding_token": 0},
}
SMALL = {"data__context": 16, "data__train_split": "train[:8]", "data__test_split": "test[:2]"}


def command(name, workdir):
    return arguments(workdir, config=f"configs/{name}.py", **SMALL | CONFIGS[name])


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """From a config's name to its finished run."""

    @functools.cache
    def run(name):
        workdir = tmp_path_factory.mktemp(name) / "run"
        assert main.main(command(name, workdir)) == 0
        return workdir

    return run


@pytest.fixture(params=["gpt_pydoc", pytest.param("mlm_pydoc", marks=pytest.mark.long)])
def finished(request, run_of):
    return request.param, run_of(request.param)


@pytest.fixture
def gpt(run_of):
    return run_of("gpt_pydoc")


@pytest.mark.more
def test_kill_9_and_again_is_bit_identical(finished, tmp_path, run_python, kill_9):
    """Packed windows, their cuts and their masks included."""
    name, whole = finished
    again = command(name, tmp_path / "run")
    kill_9(6, *again)
    assert "Continuing after step" in run_python("-m", "train.main", *again).stdout
    assert_same(tmp_path / "run", whole)


def test_the_best_step_has_the_lowest_loss(finished):
    _, workdir = finished
    lines = [line for line in record(workdir) if line["split"] == "validation"]
    best = min(lines, key=lambda line: (line["loss"], -line["step"]))
    result = json.loads((workdir / "result.json").read_text())
    assert result["best_step"] == best["step"]
    assert len(lines) == 3
    assert result["tokens_per_second"] > 0
    assert result["baselines"]


@pytest.mark.more
def test_eight_devices_measure_the_same(finished, run_python):
    _, workdir = finished
    flags = ["--workdir", str(workdir), "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    printed = run_python("-m", "train.evaluate", *flags, devices=8).stdout
    numbers = dict(word.split() for word in printed.partition(": ")[2].split(", "))
    _, metrics = evaluate.evaluate(workdir)
    assert metrics == json.loads((workdir / "result.json").read_text())["final"]["test"]
    np.testing.assert_allclose([float(numbers[name]) for name in metrics], list(metrics.values()), rtol=1e-4)


def test_another_tokeniser_is_refused(finished, tmp_path, capsys):
    name, whole = finished
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "tokeniser.json"
    assert path.is_file()
    path.write_text(path.read_text().replace("{", "{ ", 1))
    assert main.main(command(name, tmp_path / "run")) == 2
    printed = capsys.readouterr().err
    assert "tokeniser.json is not what the data give now" in printed
    assert printed.count("\n") == 1


def test_evaluation_refuses_another_tokeniser(finished, tmp_path, capsys):
    _, whole = finished
    shutil.copytree(whole, tmp_path / "run")
    path = tmp_path / "run" / "tokeniser.json"
    path.write_text(path.read_text().replace("{", "{ ", 1))
    assert evaluate.main(["--workdir", str(tmp_path / "run")]) == 2
    assert "tokeniser.json is not what the data give now" in capsys.readouterr().err


def test_generation_refuses_a_tokeniser_of_another_size(gpt, tmp_path, capsys):
    shutil.copytree(gpt, tmp_path / "run")
    words = tokenisers.make("words", ["a tokeniser of some words"])
    (tmp_path / "run" / "tokeniser.json").write_text(words.dumps())
    assert generate.main(["--workdir", str(tmp_path / "run"), "--prompt", "words"]) == 2
    printed = capsys.readouterr().err
    assert "has 7 tokens, but the parameters of step" in printed
    assert printed.count("\n") == 1


def test_generation_continues_prompts_and_follows_its_seed(gpt, capsys):
    flags = ["--workdir", str(gpt), "--prompt", "The ", "--prompt", "Class", "--tokens", "8", "--samples", "2"]
    printed = []
    for seed in ("0", "0", "1"):
        assert generate.main([*flags, "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert printed[0].startswith("The ")
    assert printed[0].count("\n\nClass") == 2
    assert generate.main([*flags, "--temperature", "0.5", "--top-k", "5", "--top-p", "0.9", "--step", "last"]) == 0
    assert generate.main([*flags, "--temperature", "0", "--top-k", "5"]) == 2
    assert "none is made; add --temperature=1." in capsys.readouterr().err


@pytest.mark.more
def test_prompts_of_a_file_are_continued_until_a_stop_string(gpt, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("The \n\nClass\n")
    flags = ["--workdir", str(gpt), "--prompts", str(tmp_path / "prompts.txt"), "--tokens", "11"]
    assert generate.main(flags) == 0
    whole = capsys.readouterr()
    assert "tokens a second" in whole.err
    first, second = whole.out[:-1].split("\n\nClass")
    stop = first[6:8]
    assert generate.main([*flags, "--stop", stop, "--stop", "never there"]) == 0
    ends = [text.find(stop, start) for text, start in ((first, 4), ("Class" + second, 5))]
    cut = [text[: None if end < 0 else end] for text, end in zip((first, "Class" + second), ends, strict=True)]
    assert capsys.readouterr().out == "\n\n".join(cut) + "\n"


def test_a_single_text_is_written_as_it_grows(capsys):
    stream = generate.Stream(["ab"])
    for text, added in (("x", ""), ("xy\N{REPLACEMENT CHARACTER}", "x"), ("xyé", "y"), ("xyéa", "é")):
        stream(0, text)
        assert capsys.readouterr().out == added
    stream.finish("xyéa!", end="\n")
    assert capsys.readouterr().out == "a!\n"


def test_answers_leave_out_the_prompt():
    shown, tokeniser = [], tokenisers.make("bytes")
    texts = Texts(tokeniser, [tokeniser.encode("ab!")], ["!"], lambda *seen: shown.append(seen), answers=True)
    assert texts([tokeniser.encode("ab!cd!e")]) == [True]
    assert shown == [(0, "cd")]
    assert texts.texts == ["cd"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts", "no-such-file"], "no-such-file"),
        (["--prompt", "x", "--stop", ""], "A stop string is empty"),
        (["--prompt", ""], "The prompt '' has no token"),
        (["--prompt", "x" * 17], "has 17 tokens, but the model was trained on 16 at a time"),
        (["--prompt", "x", "--step", "7"], "--step=7 has no checkpoint; choose last, best or one of"),
        (["--prompt", "x", "--top-p", "2"], "top_p must be above 0 and at most 1"),
        (
            ["--prompt", "x", "--top-p", "0.9", "--temperature", "0"],
            "restrict draws, and none is made; add --temperature",
        ),
        (["--prompt", "x", "--published", "y"], "Give the --workdir of a run, or a --published model"),
        (["--prompt", "x", "--chat"], "started from no published model, so it has no chat template"),
        (["--prompt", "x", "--tokens", "0"], "At least one token must be asked for"),
        (["--prompt", "x", "--samples", "0"], "There is no prompt; give at least one, and --samples of at least 1"),
        (["--prompt", "caf\udce9"], "is no text in UTF-8"),
    ],
)
def test_mistakes_of_generation_are_one_sentence(gpt, capsys, flags, message):
    assert generate.main(["--workdir", str(gpt), *flags]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert printed.count("\n") == 1


@pytest.mark.more
def test_more_tokens_than_were_trained_on_are_said_to_be(gpt, capsys):
    assert generate.main(["--workdir", str(gpt), "--prompt", "x", "--tokens", "16"]) == 0
    assert "17 tokens are more than the 16 of training" in capsys.readouterr().err


def test_only_language_models_generate(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(loading.load("configs/mlm_pydoc.py").to_dict()))
    assert generate.main(["--workdir", str(tmp_path), "--prompt", "x"]) == 2
    assert "only models of language_modelling generate text" in capsys.readouterr().err


def test_runs_that_lack_something_do_not_generate(gpt, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(gpt, copy, ignore=lambda folder, names: {"tokeniser.json", "checkpoints"} & set(names))
    assert generate.main(["--workdir", str(copy), "--prompt", "x"]) == 2
    assert "tokeniser.json cannot be read" in capsys.readouterr().err
    shutil.copy(gpt / "tokeniser.json", copy)
    assert generate.main(["--workdir", str(copy), "--prompt", "x"]) == 2
    assert "has no checkpoint yet" in capsys.readouterr().err
