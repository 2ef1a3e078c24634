"""The clock counts training alone; averages divide once; a terminal gets a bar and a file gets lines."""

import fcntl
import json
import mmap
import os
import pty
import struct
import subprocess
import sys
import termios
import types

import jax
import numpy as np
import pytest

from tests.conftest import ROOT
from tests.train.conftest import arguments
from train import cli, main
from train.run import progress, results, workdir
from train.run.progress import DIVERGED, PATIENCE, Averages, Clock, Life, averages, duration_text


def test_the_clock_leaves_out_what_is_skipped_and_goes_on_after_a_restart(monkeypatch):
    now = iter([0.0, 2.0, 50.0, 53.0, 100.0, 101.0, 108.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(now))
    clock = Clock()
    clock.lap(10)
    clock.skip()
    clock.lap(10)
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock._born + 60.0)
    assert clock.saved == {"seconds": 5.0, "units": 20, "wall": 60.0}
    assert clock.per_second == 4.0
    assert clock.pace == 2.5
    again = Clock(clock.saved)
    again.lap(10)
    assert (again.seconds, again.units, again.wall) == (6.0, 30, 60.0)
    assert again.pace == 1.0
    again.lap(10, steps=3)
    assert again.pace == 2.0


def test_peak_memory_is_of_the_fullest_device_or_of_the_process(monkeypatch):
    before, more = workdir.peak_memory(), 64 * 2**20
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    held = mmap.mmap(-1, before["peak_memory_bytes"] - resident + more)  # malloc may give what was freed before
    np.frombuffer(held, np.uint8)[:] = 1
    after = workdir.peak_memory()
    assert before["peak_memory_of"] == after["peak_memory_of"] == "process"
    assert more / 2 < after["peak_memory_bytes"] - before["peak_memory_bytes"] < more * 2
    del held
    device = lambda peak: types.SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": peak})  # noqa: E731
    monkeypatch.setattr(jax, "local_devices", lambda: [device(5), device(7)])
    assert workdir.peak_memory() == {"peak_memory_bytes": 7, "peak_memory_of": "device"}


def report(loss, weight, norm):
    """Makes the report of a call of one step."""
    loss, weight, norm = (np.array([number]) for number in (loss, weight, norm))
    taken = np.isfinite(loss) & np.isfinite(norm)
    return {"sums": {"loss": loss, "weight": weight}, "gradient_norm": norm, "learning_rate": norm / 10, "taken": taken}


def concatenated(*reports):
    """Joins reports to that of one call of several steps."""
    return jax.tree.map(lambda *numbers: np.concatenate(numbers), *reports)


def test_averages_divide_sums_once_and_start_anew():
    meter = Averages()
    meter.add(report(6.0, 2.0, 1.0), 1)
    meter = Averages(dict(meter))  # as after a restart
    meter.add(report(1.0, 5.0, 3.0), 1)
    assert meter["steps"] == 2
    assert meter.take() == {"loss": 1.0, "gradient_norm": 2.0, "learning_rate": 0.3}
    meter.add(report(4.0, 2.0, 5.0), 1)
    assert meter.take()["loss"] == 2.0
    assert averages({"loss": 3, "accuracy": 1, "weight": 4}) == {"loss": 0.75, "accuracy": 0.25}


def test_sums_that_an_older_version_saved_are_dropped_where_it_had_fewer():
    meter = Averages({"loss": 6.0, "weight": 2.0, "steps": 1, "gradient_norm": 1.0, "learning_rate": 0.1})
    more = report(1.0, 4.0, 3.0)
    meter.add(more | {"sums": more["sums"] | {"plain_loss": np.array([2.0])}}, 1)
    assert meter.take() == {"loss": 0.5, "smoothed_loss": 0.25, "gradient_norm": 3.0, "learning_rate": 0.3}


@pytest.mark.parametrize(("seconds", "text"), [(5.4, "5s"), (75, "1m15s"), (3700, "1h01m"), (float("nan"), "?")])
def test_durations_as_a_person_reads_them(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.more
def test_a_terminal_gets_a_bar(tmp_path):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "train.main", *arguments(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=follower, stdout=follower)
    os.close(follower)
    seen = b""
    while chunk := _read(leader):
        seen += chunk
    assert process.wait() == 0
    bar = seen.decode()
    assert bar.index("compiling") < bar.index("left")
    assert bar.index("12/12") < bar.rindex("12/12") < bar.index("Everything is in")  # the bar is above the summary
    assert "examples/s" in bar


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:
        return b""


@pytest.mark.more
def test_a_file_gets_lines_and_the_results_name_everything(tmp_path, capsys):
    assert main.main(arguments(tmp_path / "run", optimizer__warmup="30 steps")) == 0
    printed = capsys.readouterr()
    assert "\r" not in printed.out + printed.err
    assert "Training super:" in printed.out
    assert "288 validation, 360 test; 12 steps of 32" in " ".join(printed.out.split())
    assert "The warm-up of 30 steps is longer than the run; it is cut to 1." in printed.out
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        ".lock",
        "checkpoints",
        "config.json",
        "curves.png",
        "data.json",
        "metrics.jsonl",
        "result.json",
        "tensorboard",
        "test_examples.npz",
    ]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["final"]) == {"train", "validation", "test"}
    assert {"loss", "accuracy", "top5"} <= set(result["final"]["test"])
    assert result["attention_layer_parameters"] == 2 * (16 * 16 + 16) + 16 * 16 + 16
    assert result["steps"] == 12
    assert result["train_examples"] == 1149
    assert result["matmul_precision"] == "default"
    assert 0 < result["seconds"] < result["wall_seconds"]
    assert {"versions", "devices", "git"} <= set(result)


def test_calls_may_be_cut_anywhere():
    draw = np.random.default_rng(0)
    steps = [report(*row) for row in draw.random((7, 3)).astype(np.float32)]
    found = []
    for cuts in ([7], [1] * 7, [3, 4]):
        meter, steps_left = Averages(), list(steps)
        for cut in cuts:
            rows = concatenated(*steps_left[:cut], report(9.0, 9.0, 9.0))  # the last is beyond the call's steps
            meter.add(rows, cut)
            steps_left = steps_left[cut:]
        found.append(meter.take())
    assert found[0] == found[1] == found[2]


def test_a_life_ends_at_the_first_step_that_is_not_taken():
    life = Life({})
    numbers = concatenated(report(6.0, 2.0, 1.0), report(np.nan, 2.0, 1.0), report(6.0, 2.0, 1.0))
    assert life.add(4, 3, numbers, np.arange(6).reshape(3, 2)) == [3.0]
    assert life.ended == {"why": DIVERGED, "step": 5, "loss": "nan", "gradient_norm": "1.0", "examples": [2, 3]}
    assert Life(life.saved).saved == life.saved
    saved = life.saved
    assert life.averages.take()["loss"] == 3.0
    assert saved["averages"]["loss"] == 6.0  # it is written while training goes on


def test_a_life_keeps_the_last_of_equally_good_steps_and_ends_when_patience_does():
    life = Life({})
    assert [life.validated(step, value, patience=2) for step, value in ((1, 0.5), (2, 0.4), (3, 0.5))] == [1, 0, 1]
    assert life.best == {"step": 3, "value": 0.5}
    assert life.ended == {"why": PATIENCE, "step": 3}


def test_a_revision_is_dirty_where_files_differ_that_are_no_record_of_a_study(tmp_path):
    assert workdir.revision(tmp_path) == "unknown"
    git = lambda *words: subprocess.run(["git", "-C", tmp_path, *words], check=True, capture_output=True, text=True)  # noqa: E731
    git("init")
    for folder in ("docs", "train"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("1")
    git("add", ".")
    git("-c", "user.name=A", "-c", "user.email=a@b.c", "commit", "--message=first")
    commit = git("rev-parse", "--short=12", "HEAD").stdout.strip()
    assert workdir.revision(tmp_path / "train") == commit
    (tmp_path / "docs/file").write_text("2")
    assert workdir.revision(tmp_path / "train") == commit
    (tmp_path / "train/file").write_text("2")
    assert workdir.revision(tmp_path / "train") == f"{commit}-dirty"


@pytest.mark.parametrize(("best", "lines"), [(20, 1), (10, 2)])
def test_a_best_step_that_is_the_last_is_said_once(best, lines):
    times = {at: {"test": {"loss": 1.0}} for at in results.TIMES}
    result = {"steps": 20, "best_step": best, "seconds": 75.2, "baselines": {}} | times
    said = list(results.summary(result, "loss"))
    assert len(said) == lines
    assert said[0].startswith("Test at the last step (20)")


@pytest.mark.more
def test_a_mechanism_of_the_users_that_is_not_finite_at_its_first_step_is_to_be_checked(tmp_path, capsys):
    file = tmp_path / "my.py"
    file.write_text(
        "import attention, jax.numpy as jnp\n\n\n@attention.pair\ndef bad(query, key, at):\n"
        "    return jnp.log(-1 - (query * key).sum() ** 2)\n"
    )
    assert main.main(arguments(tmp_path / "run", model__attention=f"{file}:bad")) == cli.DIVERGED
    assert f"First, run `python -m attention.check {file}:bad`." in capsys.readouterr().err
