"""Tables of translation: no comparison of models that cannot translate."""

import json

import pytest

from attention import UsageError
from studies import runs, translations
from train import loading
from train.main import parse


def result(bleu, seconds=600.0):
    test = {"bleu": bleu, "chrf": 30.5, "accuracy": 0.5, "accuracy_with_padding": 0.75, "loss": 2.0}
    names = ("steps", "best_step", "bleu_signature", "chrf_signature", "git", "versions", "devices", "too_long_test")
    rest = dict.fromkeys((*names, "attention_layer_parameters"), 0)
    return rest | {"best": {"test": test}, "seconds": seconds, "parameters": 1234}


@pytest.mark.parametrize(
    ("done", "message"),
    [
        ({"gaussian": result(30)}, "dot_product has not finished"),
        ({"dot_product": result(9.99), "gaussian": result(30)}, r"reached 9\.99 BLEU, below the floor of 10\.0"),
    ],
)
def test_there_is_no_comparison_below_the_floor(done, message, monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    with pytest.raises(UsageError, match=message):
        translations.write("anki", done)
    assert not list(tmp_path.iterdir())


def test_writing_replaces_what_is_between_the_marks(monkeypatch, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures: translation anki -->\nold\n<!-- end -->\nb\n")
    (tmp_path / "benchmarks/results").mkdir(parents=True)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(translations, "DOCS", page)
    translations.write("anki", {"dot_product": result(20.25), "gaussian": result(19.0, 90)})
    assert (
        "| `dot_product` | 20.25 | 30.50 | 50.00 | 75.00 | 2.000 | 1,234 | 10 min |\n| `gaussian` " in page.read_text()
    )
    assert "old" not in page.read_text()
    assert json.loads((tmp_path / "benchmarks/results/anki_cpu.json").read_text())["runs"]["dot_product"]["best"]


@pytest.mark.parametrize("name", translations.SETS)
def test_flags_are_of_the_config(name):
    chosen = translations.SETS[name]
    flags = [f"--config.{flag}" for flag in (*chosen.flags, "data.source=file:somewhere")]
    for spec in chosen.mechanisms:
        loading.resolve(f"{chosen.config}:{spec}", parse(flags)[1])
