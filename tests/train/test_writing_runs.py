"""Runs of language models, translation and captioning: resumed bit for bit, measured again, and what they write."""

import functools
import json
import shutil

import numpy as np
import pytest
from PIL import Image

from analysis.pictures import attention_maps
from attention import UsageError
from tests.storm import assert_same
from tests.train.conftest import arguments, kill_9
from train import evaluate, generate, loading, main, tasks, translate
from train.data import tokenisers
from train.data.sources.caption_digits import captioned
from train.decode import alignment
from train.decode.captions import CaptionWriter
from train.decode.continuations import Texts
from train.decode.translator import Translator
from train.generation import translation_scores
from train.generation.search import Search

pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]

TEXT = {"data__context": 16, "data__train_split": "train[:8]", "data__test_split": "test[:2]"}
WRITTEN = {"data__validation_split": "validation[:40]", "data__test_split": "test[:40]", "data__translations": 5}
DATES = {"data__source": "dates(sources=('en',), targets=('de',), first=2000, last=2003)", "data__buckets": 12}
CONFIGS = {
    "gpt_pydoc": TEXT | {"data__eval_stride": 8},
    "translate_dates": WRITTEN | DATES | {"model__decoder_depth": 1},
    "caption_digits": WRITTEN | {"model__encoder": "vit(patch=8)", "model__decoder_depth": 1},
}
SENTENCES = ["en de Monday, March 2, 2020", "en de 12/31/1999"]


def command(name, workdir):
    return arguments(workdir, config=f"configs/{name}.py", **CONFIGS[name])


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Maps a config's name to its finished run."""

    @functools.cache
    def run(name):
        workdir = tmp_path_factory.mktemp(name) / "run"
        assert main.main(command(name, workdir)) == 0
        return workdir

    return run


@pytest.mark.parametrize("name", ["gpt_pydoc", "translate_dates"])
def test_kill_9_and_again_is_bit_identical(name, run_of, tmp_path, run_python):
    """Packed windows, their cuts and masks, buckets, their order and what evaluations write included."""
    again = command(name, tmp_path / "run")
    kill_9(6, *again)
    assert "Continuing after step" in run_python("-m", "train.main", *again).stdout
    assert_same(tmp_path / "run", run_of(name))


def test_another_tokeniser_is_refused(run_of, tmp_path, refused):
    run = shutil.copytree(run_of("translate_dates"), tmp_path / "run")
    tokeniser = run / "target_tokeniser.json"
    tokeniser.write_text(tokeniser.read_text().replace("{", "{ ", 1))
    for program, flags in ((evaluate, [f"--workdir={run}"]), (main, command("translate_dates", run))):
        assert "target_tokeniser.json differs from what the data give now" in refused(program.main, flags)


def test_what_lacks_something_does_not_generate(run_of, tmp_path, refused):
    gpt = run_of("gpt_pydoc")
    copy = shutil.copytree(gpt, tmp_path / "run", ignore=shutil.ignore_patterns("tokeniser.json", "checkpoints"))
    flags = [f"--workdir={copy}", "--prompt=words"]
    assert "tokeniser.json cannot be read" in refused(generate.main, flags)
    shutil.copy(gpt / "tokeniser.json", copy)
    assert "has no checkpoint yet" in refused(generate.main, flags)
    shutil.copytree(gpt / "checkpoints", copy / "checkpoints")
    (copy / "tokeniser.json").write_text(tokenisers.make("words", ["a tokeniser of some words"]).dumps())
    assert "has 7 tokens, but the parameters of step" in refused(generate.main, flags)


@pytest.mark.parametrize(
    ("program", "config", "flags", "message"),
    [
        (generate, "mlm_pydoc", ["--prompt=x"], "only models of language_modelling generate text"),
        (generate, "vit_digits", ["--image=x"], "only models of captioning write captions of images"),
        (translate, "vit_digits", ["text"], "only models of translation translate"),
    ],
)
def test_runs_of_other_tasks_do_not_write(program, config, flags, message, tmp_path, refused):
    (tmp_path / "config.json").write_text(json.dumps(loading.load(f"configs/{config}.py").to_dict()))
    assert message in refused(program.main, [f"--workdir={tmp_path}", *flags])


MISTAKES = {
    (generate, "gpt_pydoc"): [
        (["--prompts=no-such-file"], "no-such-file"),
        (["--prompt=x", "--stop="], "A stop string is empty"),
        (["--prompt="], "The prompt '' has no token"),
        ([f"--prompt={'x' * 17}"], "has 17 tokens, but the model was trained on 16 at a time"),
        (["--prompt=x", "--top-p=0.9", "--temperature=0"], "restrict draws, and none is made; add --temperature=1."),
        (["--prompt=x", "--published=y"], "Give the --workdir of a run, or a --published model"),
        (["--prompt=x", "--chat"], "started from no published model, so it has no chat template"),
        (["--prompt=x", "--samples=0"], "There is no prompt; give at least one, and --samples of at"),
    ],
    (generate, "caption_digits"): [
        (["--image=none.png"], "cannot be read"),
        (["--image=none.png", "--prompt=a"], "give one of both"),
        (["--image=none.png", "--tokens=0"], "max_length must be at least 1"),
    ],
    (translate, "translate_dates"): [
        (["text", "--input=a", "--output=b"], "Give sentences to translate, or --input=FILE and --output=FILE."),
        (["--input=a", "--output=b", "--alignment=c.png"], "--alignment draws one sentence"),
        (["--input=nowhere.txt", "--output=b"], "nowhere.txt"),
        (["text", "--beams=2", "--temperature=1"], "2 beams are searched, not drawn"),
        (["text", f"--seed={2**32}"], "--seed must be at least 0 and below 2**32"),
        ([SENTENCES[0], "en de " + "x" * 99], "has more than the 64 tokens that the model was trained for"),
    ],
}


@pytest.mark.parametrize(("program", "name"), MISTAKES)
def test_mistakes_are_one_sentence(program, name, run_of, refused):
    for flags, message in MISTAKES[program, name]:
        assert message in refused(program.main, [f"--workdir={run_of(name)}", *flags])


# Language models


def test_generation_continues_prompts_and_follows_its_seed(run_of, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("The \n\nClass\n")
    flags = [f"--workdir={run_of('gpt_pydoc')}", f"--prompts={tmp_path / 'prompts.txt'}", "--samples=2"]
    printed = []
    for seed in ("0", "0", "1"):
        assert generate.main([*flags, f"--seed={seed}", "--tokens=8"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert printed[0].startswith("The ")
    assert printed[0].count("\n\nClass") == 2
    assert generate.main([*flags, "--tokens=16"]) == 0
    assert "22 tokens are more than the 16 of training: expect less." in capsys.readouterr().err


def test_a_single_text_is_written_as_it_grows(capsys):
    stream = generate.Stream(["ab"])
    for text, added in (("x", ""), ("xy\N{REPLACEMENT CHARACTER}", "x"), ("xyé", "y"), ("xyéa", "é")):
        stream(0, text)
        assert capsys.readouterr().out == added
    stream.finish("xyéa!", end="\n")
    assert capsys.readouterr().out == "a!\n"


@pytest.mark.parametrize(("answers", "text"), [(True, "cd"), (False, "ab!cd")])
def test_a_text_ends_before_a_stop_string_behind_its_prompt_which_answers_leave_out(answers, text):
    shown, tokeniser = [], tokenisers.make("bytes")
    texts = Texts(tokeniser, [tokeniser.encode("ab!")], ["!"], lambda *seen: shown.append(seen), answers)
    assert texts([tokeniser.encode("ab!cd!e")]) == [True]
    assert shown == [(0, text)]
    assert texts.texts == [text]


# Translation


def test_sentences_and_files_are_translated_alike(run_of, tmp_path, capsys):
    """Empty and too long sentences give empty lines; the latter are counted and named."""
    flags = [f"--workdir={run_of('translate_dates')}", "--step=last"]
    source, out = tmp_path / "in.txt", tmp_path / "out.txt"
    assert translate.main([*flags, *SENTENCES, f"--alignment={tmp_path / 'alignment.png'}"]) == 0
    assert (tmp_path / "alignment.png").is_file()
    first, second = capsys.readouterr().out.rstrip("\n").split("\n")
    source.write_text("\n".join(["", *SENTENCES * 17, "en de " + "x" * 99]) + "\n", encoding="utf-8")
    assert translate.main([*flags, f"--input={source}", f"--output={out}"]) == 1
    assert "1 lines (36)" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8").split("\n") == ["", *[first, second] * 17, "", ""]


def test_the_command_translates_as_well_as_the_run_measured(run_of):
    translator = Translator.load(run_of("translate_dates"), "last")
    bitext = tasks.find("translation")(translator.config).corpus
    every = np.arange(len(bitext.splits["test"]))
    sources, references = (bitext.texts("test", side, every) for side in ("source", "target"))
    found = list(translator.translations(sources, Search.configured(translator.config.data)))
    test = json.loads((run_of("translate_dates") / "result.json").read_text())["final"]["test"]
    expected = translation_scores.scores(found, references)
    assert {name: test[name] for name in expected} == pytest.approx(expected)


def test_alignments_are_the_weights_of_the_tokens(run_of):
    translator = Translator.load(run_of("translate_dates"), "last")
    ids = np.append(translator.target.encode("Montag, 2. März 2020"), translator.target.special["end"])
    found = translator.align(SENTENCES[0], ids)
    assert "".join(found.source) == SENTENCES[0].replace(" ", "␣") + "</s>"
    assert found.weights.shape == (len(found.target), len(found.source)) == (len(ids), len(found.source))
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)


def test_tokens_that_no_font_has_are_drawn_quietly_and_an_unknown_format_is_named(tmp_path, recwarn):
    odd = alignment.Alignment(["$x", "$y", "\x00"], ["漢", "\x07"], np.ones((2, 3)) / 3)
    alignment.draw(odd, tmp_path / "alignment.png")
    assert not recwarn.list
    assert (tmp_path / "alignment.png").stat().st_size > 1000
    with pytest.raises(UsageError, match=r"\.txt cannot be drawn"):
        alignment.draw(odd, tmp_path / "alignment.txt")


# Captioning


def test_a_file_of_another_size_and_colour_is_described_as_its_image_is(run_of, tmp_path, capsys):
    image = Image.fromarray(captioned("test")[0][3, ..., 0])
    paths = [tmp_path / "same.png", tmp_path / "large.png"]
    image.save(paths[0])
    image.convert("RGB").resize((120, 48), Image.Resampling.NEAREST).save(paths[1])
    writer = CaptionWriter.load(run_of("caption_digits"))
    same, large = writer.captions(paths, Search.configured(writer.config.data))
    assert same == large
    flags = [f"--workdir={run_of('caption_digits')}", *(f"--image={path}" for path in paths)]
    for more, expected in ([], [same, large]), (["--tokens=2"], [same.split()[0], large.split()[0]]):  # and the end
        assert generate.main([*flags, *more]) == 0
        assert capsys.readouterr().out.splitlines() == expected


def test_each_word_has_a_map_that_sums_to_one(run_of):
    (maps,) = attention_maps.of_captions(run_of("caption_digits"), [2])
    assert maps.looks.shape == (len(maps.words), 2, 5)
    np.testing.assert_allclose(maps.looks.sum((1, 2)), 1, rtol=1e-5)
