"""A run that no longer improves ends for good, wherever it was stopped."""

import json
import shutil

import pytest

from tests.storm import assert_same
from tests.train.conftest import arguments, record
from tests.train.test_resume import killed
from train import main
from train.run.training import TrainingRun

pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]

OPTIONS = {
    "train__patience": 2,
    "train__eval_every": "2 steps",
    "train__log_every": "4 steps",
    "train__ema": 0.9,
}


@pytest.fixture(scope="module", autouse=True)
def falling():
    """Makes the deciding value fall with the loss, so that the first validation stays the best."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingRun, "_value", lambda _, metrics: metrics["loss"])
        yield


@pytest.fixture(scope="module")
def ended(falling, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("early") / "run"
    assert main.main(arguments(workdir, **OPTIONS)) == 0
    return workdir


def test_it_ends_after_so_many_evaluations_with_all_its_metrics(ended):
    result = json.loads((ended / "result.json").read_text())
    assert (result["steps"], result["best_step"], result["stopped_early"]) == (6, 2, True)
    assert [line["step"] for line in record(ended) if line["split"] == "validation"] == [2, 4, 6]
    assert [line["step"] for line in record(ended) if line["split"] == "train"] == [4, 6]


def test_killed_and_started_again_it_ends_alike_and_then_stays_ended(ended, tmp_path, capsys):
    command = arguments(tmp_path / "run", **OPTIONS)
    with killed(5):
        main.main(command)
    assert main.main(command) == 0
    assert_same(tmp_path / "run", ended)
    capsys.readouterr()
    assert main.main(command) == 0
    assert "Ended after step 6 of 12: no better accuracy in 2 evaluations" in " ".join(capsys.readouterr().out.split())
    assert_same(tmp_path / "run", ended)


def test_more_patience_lets_it_go_on(ended, tmp_path):
    shutil.copytree(ended, tmp_path / "run")
    assert main.main(arguments(tmp_path / "run", **OPTIONS | {"train__patience": 3})) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["best_step"]) == (8, 2)
