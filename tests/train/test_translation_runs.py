"""Runs of translation: killed and started again bit for bit, measured again, and used."""

import functools
import json
import shutil

import matplotlib.image
import numpy as np
import pytest

from attention import UsageError
from tests.storm import assert_same
from tests.train.conftest import TINY, record
from train import evaluate, loading, main, tasks, translate
from train.decode import alignment
from train.generation import translation_scores
from train.generation.search import Search

pytestmark = pytest.mark.xdist_group(__name__)

DATES = {
    "data.source": "dates(sources=('en',), targets=('de',), first=2000, last=2003)",
    "data.validation_split": "validation[:40]",
    "data.test_split": "test[:40]",
    "data.buckets": "12",
    "data.translations": "5",
}
CONFIGS = {
    "translate_dates": {"model.decoder_depth": "1"},
    "seq2seq_dates": {"model.embedding": "8", "model.hidden": "12", "model.teacher_forcing": "0.5"},
}
SENTENCES = ["en de Monday, March 2, 2020", "en de 12/31/1999"]


def command(name, workdir):
    model = {} if name == "seq2seq_dates" else {key: TINY[key] for key in TINY if key.startswith("model.")}
    rest = {key: TINY[key] for key in TINY if not key.startswith("model.")} | DATES | model | CONFIGS[name]
    flags = [f"--config.{key}={value}" for key, value in rest.items()]
    return [f"--config=configs/{name}.py", f"--workdir={workdir}", *flags]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """From a config's name to its finished run."""

    @functools.cache
    def run(name):
        workdir = tmp_path_factory.mktemp(name) / "run"
        assert main.main(command(name, workdir)) == 0
        return workdir

    return run


@pytest.fixture(params=["translate_dates", pytest.param("seq2seq_dates", marks=pytest.mark.long)])
def finished(request, run_of):
    return request.param, run_of(request.param)


@pytest.fixture
def transformer(run_of):
    return run_of("translate_dates")


@pytest.mark.more
def test_kill_9_and_again_is_bit_identical(finished, tmp_path, run_python, kill_9):
    """Buckets, their order and the translations of evaluations included."""
    name, whole = finished
    again = command(name, tmp_path / "run")
    kill_9(6, *again)
    assert "Continuing after step" in run_python("-m", "train.main", *again).stdout
    assert_same(tmp_path / "run", whole)


def test_what_is_recorded(finished):
    _, workdir = finished
    validation = [line for line in record(workdir) if line["split"] == "validation"]
    result = json.loads((workdir / "result.json").read_text())
    for metrics in (*validation, result["final"]["test"]):
        assert {"loss", "perplexity", "accuracy", "accuracy_with_padding", "bleu", "chrf", "exact_match"} <= set(
            metrics
        )
    best = min(validation, key=lambda line: (line["loss"], -line["step"]))
    assert result["best_step"] == best["step"]
    assert {name: result[name] for name in translation_scores.signatures()} == translation_scores.signatures()


@pytest.mark.more
def test_eight_devices_measure_the_same(finished, run_python):
    _, workdir = finished
    flags = ["--workdir", str(workdir), "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    printed = run_python("-m", "train.evaluate", *flags, devices=8).stdout
    numbers = dict(word.split() for word in printed.partition(": ")[2].split(", "))
    _, metrics = evaluate.evaluate(workdir)
    assert metrics == json.loads((workdir / "result.json").read_text())["final"]["test"]
    np.testing.assert_allclose([float(numbers[name]) for name in metrics], list(metrics.values()), rtol=1e-4)


@pytest.mark.more
def test_a_run_is_measured_again_with_beams(transformer):
    _, greedy = evaluate.evaluate(transformer, "last")
    _, beams = evaluate.evaluate(transformer, "last", overrides={"data.beams": "3"})
    assert greedy["loss"] == beams["loss"]
    assert greedy["chrf"] != beams["chrf"]


def test_sentences_and_files_are_translated_alike(finished, tmp_path, capsys):
    _, workdir = finished
    assert translate.main(["--workdir", str(workdir), "--step=last", *SENTENCES]) == 0
    printed = capsys.readouterr().out.rstrip("\n").split("\n")
    (tmp_path / "in.txt").write_text("\n".join(SENTENCES * 20) + "\n", encoding="utf-8")
    files = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"]
    assert translate.main(["--workdir", str(workdir), "--step=last", *files]) == 0
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").splitlines() == printed * 20


@pytest.mark.more
def test_the_command_translates_as_well_as_the_run_measured(finished):
    _, workdir = finished
    translator = translate.Translator.load(workdir, "last")
    bitext = tasks.find("translation")(translator.config).corpus
    every = np.arange(len(bitext.splits["test"]))
    sources, references = (bitext.texts("test", side, every) for side in ("source", "target"))
    found = list(translator.translations(sources, Search.configured(translator.config.data)))
    test = json.loads((workdir / "result.json").read_text())["final"]["test"]
    expected = translation_scores.scores(found, references)
    assert {name: test[name] for name in expected} == pytest.approx(expected)


def test_long_sentences_are_named_and_counted(transformer, tmp_path, capsys):
    long = "en de " + "x" * 99
    assert translate.main(["--workdir", str(transformer), SENTENCES[0], long]) == 2
    assert "has more than the 64 tokens that the model was trained for; shorten it." in capsys.readouterr().err
    (tmp_path / "in.txt").write_text("\n".join([SENTENCES[0], long, SENTENCES[1]]) + "\n", encoding="utf-8")
    files = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"]
    assert translate.main(["--workdir", str(transformer), *files]) == 1
    assert "1 lines (2)" in capsys.readouterr().err
    written = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert len(written) == 4
    assert written[1] == ""


@pytest.mark.more
def test_translations_of_nothing_are_empty(finished, tmp_path):
    _, workdir = finished
    (tmp_path / "in.txt").write_text(f"\n{SENTENCES[0]}\n \n", encoding="utf-8")
    files = [f"--input={tmp_path / 'in.txt'}", f"--output={tmp_path / 'out.txt'}"]
    assert translate.main(["--workdir", str(workdir), "--step=last", *files]) == 0
    written = (tmp_path / "out.txt").read_text(encoding="utf-8").split("\n")
    assert [bool(line) for line in written] == [False, True, False, False]


@pytest.mark.more
def test_the_alignment_is_drawn(finished, tmp_path):
    _, workdir = finished
    picture = tmp_path / "alignment.png"
    assert translate.main(["--workdir", str(workdir), "--step=last", SENTENCES[0], f"--alignment={picture}"]) == 0
    assert matplotlib.image.imread(picture).std() > 0.05


def test_alignments_are_the_weights_of_the_tokens(finished):
    _, workdir = finished
    translator = translate.Translator.load(workdir, "last")
    ids = np.append(translator.target.encode("Montag, 2. März 2020"), translator.target.special["end"])
    found = translator.align(SENTENCES[0], ids)
    assert "".join(found.source) == SENTENCES[0].replace(" ", "␣") + "</s>"
    assert len(found.target) == len(ids)
    assert found.weights.shape == (len(found.target), len(found.source))
    np.testing.assert_allclose(found.weights.sum(axis=1), 1, rtol=1e-5)


def test_tokens_that_no_font_has_are_drawn_quietly(tmp_path, recwarn):
    odd = alignment.Alignment(["$x", "$y", "\x00"], ["漢", "\x07"], np.ones((2, 3)) / 3)
    alignment.draw(odd, tmp_path / "alignment.png")
    assert not recwarn.list
    assert (tmp_path / "alignment.png").stat().st_size > 1000


def test_pictures_that_cannot_be_written(tmp_path):
    with pytest.raises(UsageError, match=r"\.txt cannot be drawn"):
        alignment.draw(alignment.Alignment(["a"], ["b"], np.ones((1, 1))), tmp_path / "alignment.txt")


def test_another_tokeniser_is_refused(transformer, tmp_path, capsys):
    shutil.copytree(transformer, tmp_path / "run")
    path = tmp_path / "run" / "target_tokeniser.json"
    path.write_text(path.read_text().replace("{", "{ ", 1))
    assert evaluate.main(["--workdir", str(tmp_path / "run")]) == 2
    assert "target_tokeniser.json is not what the data give now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Give sentences to translate, or --input=FILE and --output=FILE."),
        (["--input=a"], "Give sentences to translate"),
        (["text", "--input=a", "--output=b"], "Give sentences to translate"),
        (["--input=a", "--output=b", "--alignment=c.png"], "--alignment draws one sentence"),
        (["--input=nowhere.txt", "--output=b"], "nowhere.txt"),
        (["text", "--beams=-1"], "beams must be at least 1"),
        (["text", "--beams=2", "--temperature=1"], "2 beams are searched, not drawn"),
        (["text", "--step=7"], "7"),
        (["text", f"--seed={2**32}"], "--seed must be at least 0 and below 2**32"),
    ],
)
def test_mistakes_are_one_sentence(transformer, capsys, flags, message):
    assert translate.main([f"--workdir={transformer}", *flags]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1


def test_runs_of_other_tasks_do_not_translate(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(loading.load("configs/vit_digits.py").to_dict()))
    assert translate.main([f"--workdir={tmp_path}", "text"]) == 2
    assert "only models of translation translate" in capsys.readouterr().err
