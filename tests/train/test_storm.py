"""Killed at random moments again and again, a run ends bit for bit as if nothing had happened."""

import dataclasses
import signal

import pytest

from tests.storm import Storm, assert_same
from tests.train.conftest import arguments

pytestmark = pytest.mark.xdist_group(__name__)

# An epoch has five steps, so that kills fall inside of epochs too.
OPTIONS = {"train__ema": 0.9, "data__mixup": 0.2, "train__accumulate": 2, "data__train_split": "train[:160]"}
OPTIONS |= {"train__log_every": "1 steps", "train__checkpoint_every": "3 steps"}


def flags(length):
    options = OPTIONS | {"train__length": f"{length} steps", "train__eval_every": f"{length // 3} steps"}
    return [argument for argument in arguments("", **options) if not argument.startswith("--workdir")]


@pytest.mark.parametrize(
    ("kills", "number", "processes", "length"),
    [
        (3, signal.SIGKILL, 1, 30),
        pytest.param(2, signal.SIGKILL, 2, 60, marks=pytest.mark.long),
        pytest.param(20, signal.SIGKILL, 1, 400, marks=pytest.mark.long),
        pytest.param(20, signal.SIGTERM, 1, 400, marks=pytest.mark.long),
        pytest.param(20, signal.SIGKILL, 2, 400, marks=pytest.mark.long),
    ],
)
def test_a_storm_leaves_no_trace(tmp_path, kills, number, processes, length):
    storm = Storm(flags(length), tmp_path / "hit", kills, number, processes)
    start = dataclasses.replace(storm, workdir=tmp_path / "whole").uninterrupted()
    log = storm.rage(start)
    assert len(log) == kills
    if number == signal.SIGKILL:
        assert any(line.endswith("half written") for line in log), log
    assert_same(tmp_path / "hit", tmp_path / "whole")
