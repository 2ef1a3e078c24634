"""Tables of translation: no comparison of models that cannot translate."""

import pytest

from attention import UsageError
from studies import runs, translations
from train import loading
from train.main import parse


@pytest.mark.parametrize(
    ("bleu", "message"),
    [
        ({"gaussian": 30}, "dot_product has not finished"),
        ({"dot_product": 9.99, "gaussian": 30}, r"reached 9\.99 BLEU, below the floor of 10\.0"),
    ],
)
def test_there_is_no_comparison_below_the_floor(bleu, message, monkeypatch, tmp_path):
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    with pytest.raises(UsageError, match=message):
        translations.write("anki", {spec: {"best": {"test": {"bleu": value}}} for spec, value in bleu.items()})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", translations.SETS)
def test_flags_are_of_the_config(name):
    chosen = translations.SETS[name]
    flags = [f"--config.{flag}" for flag in (*chosen.flags, "data.source=file:somewhere")]
    for spec in chosen.mechanisms:
        loading.resolve(f"{chosen.config}:{spec}", parse(flags)[1])
