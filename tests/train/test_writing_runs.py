"""Runs of language models, translation and captioning: resumed bit for bit, measured again, and what they write."""

import functools
import json
import re
import shutil
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from PIL import Image

from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps
from attention import UsageError
from tests.conftest import ROOT
from tests.storm import assert_same
from tests.train.conftest import TINY, arguments, record
from train import evaluate, generate, loading, main, tasks, translate
from train.data import tokenisers
from train.data.sources.caption_digits import captioned
from train.decode import alignment
from train.decode.captions import CaptionWriter
from train.decode.continuations import Texts
from train.decode.translator import Translator
from train.generation import translation_scores
from train.generation.search import Search

pytestmark = pytest.mark.xdist_group(__name__)

TEXT = {"data__context": 16, "data__train_split": "train[:8]", "data__test_split": "test[:2]"}
WRITTEN = {"data__validation_split": "validation[:40]", "data__test_split": "test[:40]", "data__translations": 5}
DATES = WRITTEN | {
    "data__source": "dates(sources=('en',), targets=('de',), first=2000, last=2003)",
    "data__buckets": 12,
}
CONFIGS = {
    "gpt_pydoc": TEXT | {"data__eval_stride": 8},
    "mlm_pydoc": TEXT | {"data__tokeniser": "words(size=500, marks=True)", "model__padding_token": 0},
    "translate_dates": DATES | {"model__decoder_depth": 1},
    "seq2seq_dates": DATES | {"model__embedding": 8, "model__hidden": 12, "model__teacher_forcing": 0.5},
    "caption_digits": WRITTEN | {"model__encoder": "vit(patch=8)", "model__decoder_depth": 1},
}
OF_TRANSFORMERS = tuple(f"--config.{field}=" for field in TINY if field.startswith("model."))
SENTENCES = ["en de Monday, March 2, 2020", "en de 12/31/1999"]
LONG = pytest.mark.long


def command(name, workdir):
    flags = arguments(workdir, config=f"configs/{name}.py", **CONFIGS[name])
    return [flag for flag in flags if name != "seq2seq_dates" or not flag.startswith(OF_TRANSFORMERS)]


def runs(*names):
    """Parametrizes a test by configs; those that resemble another are for long tests."""
    long = ("mlm_pydoc", "seq2seq_dates")
    return pytest.mark.parametrize("name", [pytest.param(name, marks=[LONG] * (name in long)) for name in names])


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Maps a config's name to its finished run."""

    @functools.cache
    def run(name):
        workdir = tmp_path_factory.mktemp(name) / "run"
        assert main.main(command(name, workdir)) == 0
        return workdir

    return run


@pytest.fixture
def gpt(run_of):
    return run_of("gpt_pydoc")


@pytest.fixture
def dates(run_of):
    return run_of("translate_dates")


@pytest.fixture
def captions(run_of):
    return run_of("caption_digits")


def refused(program, flags, capsys):
    """The sentence of a mistake."""
    assert program.main(flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return line


def changed(run, folder, file):
    """A copy of a run whose tokeniser is not quite the same."""
    path = shutil.copytree(run, folder / "run") / file
    path.write_text(path.read_text().replace("{", "{ ", 1))
    return folder / "run"


@pytest.mark.more
@runs(*CONFIGS)
def test_kill_9_and_again_is_bit_identical(name, run_of, tmp_path, run_python, kill_9):
    """Packed windows, their cuts and masks, buckets, their order and what evaluations write included."""
    again = command(name, tmp_path / "run")
    kill_9(6, *again)
    assert "Continuing after step" in run_python("-m", "train.main", *again).stdout
    assert_same(tmp_path / "run", run_of(name))


@runs(*CONFIGS)
def test_what_is_recorded(name, run_of):
    """The best step is the one with the lowest loss on validation data."""
    run = run_of(name)
    lines = [line for line in record(run) if line["split"] == "validation"]
    result = json.loads((run / "result.json").read_text())
    assert result["best_step"] == min(lines, key=lambda line: (line["loss"], -line["step"]))["step"]
    assert len(lines) == 3
    names = {"loss", "perplexity"}
    if name in ("gpt_pydoc", "mlm_pydoc"):
        assert result["tokens_per_second"] > 0
        assert result["baselines"]
    else:
        names |= {"accuracy", "accuracy_with_padding", "bleu", "chrf", "exact_match"}
        assert {name: result[name] for name in translation_scores.signatures()} == translation_scores.signatures()
        assert result["too_long_test"] == 0
    for metrics in (*lines, result["final"]["test"]):
        assert names <= set(metrics)


@pytest.mark.more
@runs(*CONFIGS)
def test_eight_devices_measure_the_same(name, run_of, run_python):
    flags = ["--workdir", str(run_of(name)), "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    printed = run_python("-m", "train.evaluate", *flags, devices=8).stdout
    numbers = dict(word.split() for word in printed.partition(": ")[2].split(", "))
    _, metrics = evaluate.evaluate(run_of(name))
    assert metrics == json.loads((run_of(name) / "result.json").read_text())["final"]["test"]
    np.testing.assert_allclose([float(numbers[name]) for name in metrics], list(metrics.values()), rtol=1e-4)


@pytest.mark.more
def test_a_run_is_measured_again_with_beams(dates):
    _, greedy = evaluate.evaluate(dates, "last")
    _, beams = evaluate.evaluate(dates, "last", overrides={"data.beams": "3"})
    assert greedy["loss"] == beams["loss"]
    assert greedy["chrf"] != beams["chrf"]


@pytest.mark.parametrize(
    ("name", "file"), [("gpt_pydoc", "tokeniser.json"), ("translate_dates", "target_tokeniser.json")]
)
def test_another_tokeniser_is_refused(name, file, run_of, tmp_path, capsys):
    run = changed(run_of(name), tmp_path, file)
    assert f"{file} differs from what the data give now" in refused(evaluate, [f"--workdir={run}"], capsys)
    assert f"{file} differs from what the data give now" in refused(main, command(name, run), capsys)


def test_what_lacks_something_does_not_generate(gpt, tmp_path, capsys):
    copy = shutil.copytree(gpt, tmp_path / "run", ignore=shutil.ignore_patterns("tokeniser.json", "checkpoints"))
    flags = [f"--workdir={copy}", "--prompt=words"]
    assert "tokeniser.json cannot be read" in refused(generate, flags, capsys)
    shutil.copy(gpt / "tokeniser.json", copy)
    assert "has no checkpoint yet" in refused(generate, flags, capsys)
    shutil.copytree(gpt / "checkpoints", copy / "checkpoints")
    (copy / "tokeniser.json").write_text(tokenisers.make("words", ["a tokeniser of some words"]).dumps())
    assert "has 7 tokens, but the parameters of step" in refused(generate, flags, capsys)


@pytest.mark.parametrize(
    ("program", "config", "flags", "message"),
    [
        (generate, "mlm_pydoc", ["--prompt=x"], "only models of language_modelling generate text"),
        (generate, "vit_digits", ["--image=x"], "only models of captioning write captions of images"),
        (translate, "vit_digits", ["text"], "only models of translation translate"),
    ],
)
def test_runs_of_other_tasks_do_not_write(program, config, flags, message, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(loading.load(f"configs/{config}.py").to_dict()))
    assert message in refused(program, [f"--workdir={tmp_path}", *flags], capsys)


NO_DRAW = "restrict draws, and none is made; add --temperature=1."
NO_SENTENCES = "Give sentences to translate, or --input=FILE and --output=FILE."
MISTAKES = {
    (generate, "gpt_pydoc"): [
        (["--prompts=no-such-file"], "no-such-file"),
        (["--prompt=x", "--stop="], "A stop string is empty"),
        (["--prompt="], "The prompt '' has no token"),
        ([f"--prompt={'x' * 17}"], "has 17 tokens, but the model was trained on 16 at a time"),
        (["--prompt=x", "--step=7"], "--step=7 has no checkpoint; choose last, best or one of"),
        (["--prompt=x", "--top-p=2"], "top_p must be above 0 and at most 1"),
        (["--prompt=x", "--top-p=0.9", "--temperature=0"], NO_DRAW),
        (["--prompt=x", "--published=y"], "Give the --workdir of a run, or a --published model"),
        (["--prompt=x", "--chat"], "started from no published model, so it has no chat template"),
        (["--prompt=x", "--tokens=0"], "At least one token must be asked for"),
        (["--prompt=x", "--samples=0"], "There is no prompt; give at least one, and --samples of at"),
        (["--prompt=caf\udce9"], "is no text in UTF-8"),
    ],
    (generate, "caption_digits"): [
        (["--image=none.png"], "cannot be read"),
        (["--image=none.png", "--prompt=a"], "give one of both"),
        (["--image=none.png", "--top-k=3"], NO_DRAW),
        (["--image=none.png", "--tokens=0"], "max_length must be at least 1"),
    ],
    (translate, "translate_dates"): [
        ([], NO_SENTENCES),
        (["--input=a"], NO_SENTENCES),
        (["text", "--input=a", "--output=b"], NO_SENTENCES),
        (["--input=a", "--output=b", "--alignment=c.png"], "--alignment draws one sentence"),
        (["--input=nowhere.txt", "--output=b"], "nowhere.txt"),
        (["text", "--beams=-1"], "beams must be at least 1"),
        (["text", "--beams=2", "--temperature=1"], "2 beams are searched, not drawn"),
        (["text", f"--seed={2**32}"], "--seed must be at least 0 and below 2**32"),
        ([SENTENCES[0], "en de " + "x" * 99], "has more than the 64 tokens that the model was trained for"),
    ],
}


@pytest.mark.parametrize(
    ("program", "name", "flags", "message"), [(*key, *row) for key, rows in MISTAKES.items() for row in rows]
)
def test_mistakes_are_one_sentence(program, name, flags, message, run_of, capsys):
    assert message in refused(program, [f"--workdir={run_of(name)}", *flags], capsys)


# Language models


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


def test_what_is_said_of_a_text_stands_below_it(gpt):
    """Both streams go to one place, as on a terminal."""
    command = [sys.executable, "-m", "train.generate", f"--workdir={gpt}", "--prompt=The ", "--tokens=16", "--stop=~~~"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    *text, speed, length = done.stdout.splitlines()
    assert text[0].startswith("The ")
    assert re.fullmatch(r"\d+ tokens a second, after the first \d+\.", speed)
    assert length == "20 tokens are more than the 16 of training: expect less."


@pytest.mark.more
def test_prompts_of_a_file_are_continued_until_a_stop_string(gpt, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("The \n\nClass\n")
    flags = ["--workdir", str(gpt), "--prompts", str(tmp_path / "prompts.txt"), "--tokens", "11"]
    assert generate.main(flags) == 0
    whole = capsys.readouterr()
    assert "tokens a second" in whole.err
    assert "16 tokens are more than the 16 of training" not in whole.err
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


# Translation


@runs("translate_dates", "seq2seq_dates")
def test_sentences_and_files_are_translated_alike(name, run_of, tmp_path, capsys):
    """Empty and too long sentences give empty lines; the latter are counted and named."""
    flags, source, out = [f"--workdir={run_of(name)}", "--step=last"], tmp_path / "in.txt", tmp_path / "out.txt"
    assert translate.main([*flags, *SENTENCES]) == 0
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    source.write_text("\n".join(["", *SENTENCES * 17, " "]) + "\n", encoding="utf-8")
    assert translate.main([*flags, f"--input={source}", f"--output={out}"]) == 0
    assert out.read_text(encoding="utf-8").split("\n") == ["", *printed * 17, "", ""]
    source.write_text("\n".join([SENTENCES[0], "en de " + "x" * 99, SENTENCES[1]]) + "\n", encoding="utf-8")
    assert translate.main([*flags, f"--input={source}", f"--output={out}"]) == 1
    assert "1 lines (2)" in capsys.readouterr().err
    assert out.read_text(encoding="utf-8").split("\n") == [printed[0], "", printed[1], ""]


@pytest.mark.more
@runs("translate_dates", "seq2seq_dates")
def test_the_command_translates_as_well_as_the_run_measured(name, run_of):
    translator = Translator.load(run_of(name), "last")
    bitext = tasks.find("translation")(translator.config).corpus
    every = np.arange(len(bitext.splits["test"]))
    sources, references = (bitext.texts("test", side, every) for side in ("source", "target"))
    found = list(translator.translations(sources, Search.configured(translator.config.data)))
    test = json.loads((run_of(name) / "result.json").read_text())["final"]["test"]
    expected = translation_scores.scores(found, references)
    assert {name: test[name] for name in expected} == pytest.approx(expected)


@runs("translate_dates", "seq2seq_dates")
def test_alignments_are_the_weights_of_the_tokens(name, run_of):
    translator = Translator.load(run_of(name), "last")
    ids = np.append(translator.target.encode("Montag, 2. März 2020"), translator.target.special["end"])
    found = translator.align(SENTENCES[0], ids)
    assert "".join(found.source) == SENTENCES[0].replace(" ", "␣") + "</s>"
    assert found.weights.shape == (len(found.target), len(found.source)) == (len(ids), len(found.source))
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.more
def test_the_alignment_is_drawn(dates, tmp_path):
    picture = tmp_path / "alignment.png"
    assert translate.main(["--workdir", str(dates), "--step=last", SENTENCES[0], f"--alignment={picture}"]) == 0
    assert matplotlib.image.imread(picture).std() > 0.05


def test_tokens_that_no_font_has_are_drawn_quietly_and_an_unknown_format_is_named(tmp_path, recwarn):
    odd = alignment.Alignment(["$x", "$y", "\x00"], ["漢", "\x07"], np.ones((2, 3)) / 3)
    alignment.draw(odd, tmp_path / "alignment.png")
    assert not recwarn.list
    assert (tmp_path / "alignment.png").stat().st_size > 1000
    with pytest.raises(UsageError, match=r"\.txt cannot be drawn"):
        alignment.draw(odd, tmp_path / "alignment.txt")


# Captioning


def test_a_file_of_another_size_and_colour_is_described_as_its_image_is(captions, tmp_path, capsys):
    image = Image.fromarray(captioned("test")[0][3, ..., 0])
    paths = [tmp_path / "same.png", tmp_path / "large.png"]
    image.save(paths[0])
    image.convert("RGB").resize((120, 48), Image.Resampling.NEAREST).save(paths[1])
    writer = CaptionWriter.load(captions)
    same, large = writer.captions(paths, Search.configured(writer.config.data))
    assert same == large
    flags = [f"--workdir={captions}", *(f"--image={path}" for path in paths)]
    for more, expected in ([], [same, large]), (["--tokens=2"], [same.split()[0], large.split()[0]]):  # and the end
        assert generate.main([*flags, *more]) == 0
        assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.more
def test_each_word_has_a_map_that_sums_to_one_and_the_picture_is_drawn(captions, tmp_path):
    (maps,) = attention_maps.of_captions(captions, [2])
    assert maps.looks.shape == (len(maps.words), 2, 5)
    np.testing.assert_allclose(maps.looks.sum((1, 2)), 1, rtol=1e-5)
    flags = [f"--workdir={captions}", "--examples", "0", "2", f"--out={tmp_path / 'looks.png'}"]
    assert pictures.main(["attention", *flags]) == 0
    assert Image.open(tmp_path / "looks.png").size[0] > 300
