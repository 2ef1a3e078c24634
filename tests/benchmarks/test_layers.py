"""Whole models: DiGiugno's two, in each of its settings, and figures that go with the paper's."""

import json
import sys

import jax
import pytest

from benchmarks import layers
from train.config import loading
from train.state import count_parameters


@pytest.mark.more
def test_small_ones_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(layers, "CONTEXT", 8)
    monkeypatch.setattr(layers, "VOCABULARY", 11)
    monkeypatch.setattr(layers, "SIDE", 16)
    small = {"depth": 2, "width": 16, "heads": 2, "mlp": 16}
    load = loading.load

    def smaller(spec):
        config = load(spec)
        config.model.update(small)
        return config

    monkeypatch.setattr(loading, "load", smaller)
    out = tmp_path / "layers.json"
    spec = "neural(dim=2)|dot_product"
    monkeypatch.setattr(sys, "argv", ["layers", "--rounds=1", f"--out={out}", "--specs", "dot_product", spec])
    layers.main()
    result = json.loads(out.read_text())
    for model, paper in (("gpt", [1.4, 7.8]), ("vit", [1.1, 6.6])):
        rows = {row["attention"]: row for row in result[model]}
        assert rows[spec]["paper"] == paper
        assert rows[spec]["seconds_a_sample"] > 0
        assert rows["dot_product"]["ratio"] == {"median": 1.0, "least": 1.0, "greatest": 1.0}
    assert "neural(dim=2)\\|dot_product` |" in capsys.readouterr().out


def test_the_models_are_000s():
    counts = {}
    for model, make, shape in (("gpt", layers._gpt, (1, 1024)), ("vit", layers._vit, (1, 224, 224, 3))):
        section = loading.load(layers.CONFIGS[model]).to_dict()
        section["model"]["attention"] = "dot_product"
        network, inputs, _ = make(loading.validate(section), 1)
        assert inputs.shape == shape
        counts[model] = count_parameters(jax.eval_shape(network.init, jax.random.key(0), inputs))
    assert counts == {"gpt": 46_527_812, "vit": 47_402_506}
