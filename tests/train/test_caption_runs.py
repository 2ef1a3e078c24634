"""Runs of captioning: resumed bit for bit, measured, and used on files and in pictures."""

import json

import numpy as np
import pytest
from PIL import Image

from analysis.pictures import __main__ as pictures
from analysis.pictures import attention_maps
from tests.storm import assert_same
from tests.train.conftest import arguments
from train import evaluate, generate, main
from train.data.sources.caption_digits import captioned
from train.decode.captions import CaptionWriter
from train.generation.search import Search

pytestmark = pytest.mark.xdist_group(__name__)

SMALL = {
    "config": "configs/caption_digits.py",
    "model__encoder": "vit(patch=8)",
    "data__validation_split": "validation[:40]",
    "data__test_split": "test[:40]",
    "data__translations": "5",
    "model__decoder_depth": "1",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("captions") / "run"
    assert main.main(arguments(workdir, **SMALL)) == 0
    return workdir


@pytest.mark.more
def test_kill_9_and_again_is_bit_identical(run, tmp_path, run_python, kill_9):
    again = arguments(tmp_path / "run", **SMALL)
    kill_9(6, *again)
    assert "Continuing after step" in run_python("-m", "train.main", *again).stdout
    assert_same(tmp_path / "run", run)


def test_what_is_recorded_and_measured_again(run, capsys):
    result = json.loads((run / "result.json").read_text())
    assert {"loss", "perplexity", "bleu", "chrf", "exact_match"} <= set(result["final"]["test"])
    assert result["too_long_test"] == 0
    assert evaluate.main([f"--workdir={run}", "--step=last"]) == 0
    assert "exact_match" in capsys.readouterr().out


def test_a_file_of_another_size_and_colour_is_described_as_its_image_is(run, tmp_path, capsys):
    pixels = captioned("test")[0][3, ..., 0]
    for name, picture in {
        "same.png": Image.fromarray(pixels),
        "large.png": Image.fromarray(pixels).convert("RGB").resize((120, 48), Image.Resampling.NEAREST),
    }.items():
        picture.save(tmp_path / name)
    writer = CaptionWriter.load(run)
    same, large = writer.captions(
        [tmp_path / "same.png", tmp_path / "large.png"], Search.configured(writer.config.data)
    )
    assert same == large
    files = [f"--image={tmp_path / name}" for name in ("same.png", "large.png")]
    assert generate.main([f"--workdir={run}", *files]) == 0
    assert capsys.readouterr().out.splitlines() == [same, large]
    assert generate.main([f"--workdir={run}", *files, "--tokens=2"]) == 0
    assert capsys.readouterr().out.splitlines() == [same.split()[0], large.split()[0]]  # and the end


@pytest.mark.more
def test_each_word_has_a_map_that_sums_to_one_and_the_picture_is_drawn(run, tmp_path):
    (maps,) = attention_maps.of_captions(run, [2])
    assert maps.looks.shape == (len(maps.words), 2, 5)
    np.testing.assert_allclose(maps.looks.sum((1, 2)), 1, rtol=1e-5)
    flags = [f"--workdir={run}", "--examples", "0", "2", f"--out={tmp_path / 'looks.png'}"]
    assert pictures.main(["attention", *flags]) == 0
    assert Image.open(tmp_path / "looks.png").size[0] > 300


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--image=none.png"], "cannot be read"),
        (["--image=none.png", "--prompt=a"], "give one of both"),
        (["--image=none.png", "--top-k=3"], "restrict draws, and none is made; add --temperature"),
        (["--image=none.png", "--tokens=0"], "max_length must be at least 1"),
        (["--prompt=a"], "only models of language_modelling generate text"),
    ],
)
def test_mistakes_are_one_sentence(run, capsys, flags, message):
    assert generate.main([f"--workdir={run}", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
