"""Trials are trained and measured as they say."""

import json

import numpy as np
import pytest

from tests.train.conftest import arguments
from train import main
from train.data.trials.section import TrialData

SPEC = "stacked_recall(size=6, least=3, keys=32, values=8, tested=(9, 12))"
SMALL = {
    "config": "configs/trial_cpu.py",
    "data__source": SPEC,
    "data__eval_examples": 40,
    "data__eval_batch_size": 20,
    "model__mlp": 0,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("trial") / "run"
    assert main.main(arguments(place, **SMALL)) == 0
    return place


def test_accuracies_are_means_over_the_answers_of_each_size(run):
    result = json.loads((run / "result.json").read_text())
    test, of_each = result["final"]["test"], np.load(run / "test_examples.npz")
    groups = np.arange(120) // 40
    for group, name in enumerate(("accuracy", "accuracy_at_9", "accuracy_at_12")):
        weights = of_each["last/" + name.replace("accuracy", "weight")][0]
        assert not weights[groups != group].any()
        assert test[name] == pytest.approx(of_each[f"last/{name}"][0].sum() / weights.sum(), rel=1e-6)
        sizes = weights[groups == group]
        assert set(sizes) <= ({3, 4, 5, 6} if group == 0 else {(9, 12)[group - 1]})
    assert "accuracy_at_9" not in result["final"]["validation"]
    assert result["baselines"] == {"chance_accuracy": 1 / 8}
    assert result["cache_bytes"] == 2 * 12 * 16 * 4  # keys and values of 12 positions, in one layer of 16 units
    assert result["cache_bytes_at_12"] == 2 * 24 * 16 * 4


def test_parts_have_examples_of_their_own():
    parts = TrialData("copying(size=6)").load().values()
    assert len({part.evaluate(3)["tokens"].tobytes() for part in parts}) == 3
