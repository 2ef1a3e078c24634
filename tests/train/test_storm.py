"""Killed at random moments again and again, a run ends bit for bit as if nothing had happened."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys

import pytest

from tests.sizes import more
from tests.storm import Storm, assert_same, without_clock
from tests.train.conftest import arguments

pytestmark = pytest.mark.xdist_group(__name__)

# An epoch has five steps, so that kills fall inside of epochs too.
COMMON = {"train__ema": 0.9, "train__log_every": "1 steps", "train__checkpoint_every": "3 steps"}
IMAGES = COMMON | {"train__accumulate": 2, "data__train_split": "train[:160]"}
TEXT = COMMON | {"config": "configs/gpt_pydoc.py", "data__context": 16, "data__train_split": "train[:8]"}
TEXT |= {"data__validation_split": "validation[:2]", "data__test_split": "test[:2]"}
CAPTIONS = COMMON | {"config": "configs/caption_digits.py", "data__train_split": "train[:160]"}
CAPTIONS |= {"data__validation_split": "validation[:40]", "data__test_split": "test[:40]", "data__eval_batch_size": 40}
RUNS = {
    "images": IMAGES,
    "images made by the host": IMAGES | {"data__mixup": 0.2},
    "replicas": IMAGES | {"train__replicas": 2, "train__rates": "(0.001, 0.003)"},
    "low-rank additions": TEXT | {"optimizer__lora": "lora(rank=2, on='.')"},
    "captions": CAPTIONS,
}


def flags(length, **options):
    options |= {"train__length": f"{length} steps", "train__eval_every": f"{length // 3} steps"}
    return [argument for argument in arguments("", **options) if not argument.startswith("--workdir")]


def assert_no_trace(storm):
    start = dataclasses.replace(storm, workdir=storm.workdir.with_name("whole")).uninterrupted()
    log = storm.rage(start)
    assert len(log) == storm.kills
    if storm.number == signal.SIGKILL:
        assert any(line.endswith("half written") for line in log), log
    assert_same(storm.workdir, storm.workdir.with_name("whole"))


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("name", "length", "kills", "number", "processes"),
    [
        more("images", 30, 3, signal.SIGKILL, 1),
        long("images", 400, 20, signal.SIGKILL, 1),
        long("images", 400, 20, signal.SIGTERM, 1),
        long("images", 400, 20, signal.SIGKILL, 2),
        *(long(name, 120, 6, signal.SIGKILL, 1) for name in RUNS if name != "images"),
    ],
)
def test_a_storm_leaves_no_trace(tmp_path, name, length, kills, number, processes):
    assert_no_trace(Storm(flags(length, **RUNS[name]), tmp_path / "hit", kills, number, processes))


@pytest.mark.long
def test_a_storm_leaves_no_trace_in_a_run_that_begins_with_a_distillation(tmp_path):
    before = arguments(tmp_path / "before", train__length="20 steps")
    assert subprocess.run([sys.executable, "-m", "train.main", *before]).returncode == 0
    start = {"train__init_from": tmp_path / "before", "model__attention": "efficient"}
    start |= {"train__exchanged": "distilled(steps=20)"}
    assert_no_trace(Storm(flags(120, **IMAGES, **start), tmp_path / "hit", 6, signal.SIGKILL))


@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill", "full"])
@pytest.mark.parametrize("kind", ["tuned", "together"])
def test_a_sweep_goes_on_after_a_fault_at_any_change_of_its_folder(kind, fault, run_python):
    run_python("-m", "tests.crashes", kind, "--every=5", f"--fault={fault}")


@pytest.mark.long
@pytest.mark.parametrize("replicas", ["yes", "no"])
def test_a_sweep_that_is_killed_again_and_again_has_the_results_of_one_that_is_not(tmp_path, replicas):
    options = {**IMAGES, "train__length": "120 steps", "train__eval_every": "40 steps"}
    more = ["--over=optimizer.learning_rate=1e-3,3e-3", "--seeds=2", f"--replicas={replicas}"]
    draw, found = random.Random(0), []
    for name, kills in (("whole", 0), ("hit", 4)):
        command = [sys.executable, "-m", "train.sweep", *arguments(tmp_path / name, **options), *more]
        for _ in range(kills):
            process = subprocess.Popen(command, start_new_session=True)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(draw.uniform(10, 40))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert subprocess.run(command).returncode == 0
        places = sorted((tmp_path / name).glob("learning_rate=*/seed*/result.json"))
        assert len(places) == 4
        found.append([without_clock(json.loads(place.read_text())) for place in places])
    assert found[0] == found[1]
