"""Killed at any moment and started again, a run is bit for bit the one that was never stopped."""

import contextlib
import json
import re
import shutil
import signal
from unittest import mock

import jax
import numpy as np
import pytest

from tests.storm import assert_same
from tests.train.conftest import RESUMED, arguments, faulty, record
from train import cli, evaluate, main
from train.run import report
from train.run.training import TrainingRun
from train.run.workdir import LOCK, claimed, read_config
from train.setup import Setup

pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]


def said(capsys):
    """Reads what was printed, with wrapped lines joined."""
    return " ".join(capsys.readouterr().out.split())


def test_sigterm_saves_and_exits_cleanly_then_continues(uninterrupted, tmp_path, capsys):
    """The whole process group gets the signal, including a worker that prepares data."""
    workdir = tmp_path / "run"
    process = faulty("5 group:SIGTERM", *arguments(workdir, **RESUMED, data__workers=1), start_new_session=True)
    assert process.returncode == 0, process.stderr
    (step,) = re.findall(r"Stopped after step (\d+) and saved", process.stdout)
    assert process.stdout.splitlines()[-1] == "The same command continues."
    assert "Worker process" not in process.stderr  # the signal left the data's worker alone
    assert (workdir / "checkpoints" / step).is_dir()
    assert main.main(arguments(workdir, **RESUMED)) == 0
    assert f"Continuing after step {step} " in said(capsys)
    assert_same(workdir, uninterrupted)


def test_where_the_program_chose_the_folder_the_command_that_continues_names_it(monkeypatch):
    """The command that started several processes is not guessed."""
    command = "python -m train.main --config=a.py '--workdir=runs/a b'"
    assert main.continuing(["--config=a.py"], "--workdir=runs/a b").endswith(f": {command}")
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    expected = "The same command with '--workdir=runs/a b' continues."
    assert main.continuing(["--config=a.py"], "--workdir=runs/a b") == expected


def test_a_damaged_newest_checkpoint_is_passed_over(uninterrupted, tmp_path, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted, workdir)
    for file in (workdir / "checkpoints" / "12" / "state").rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert main.main(arguments(workdir, **RESUMED)) == 0
    printed = said(capsys)
    assert "Checkpoint 12 is damaged" in printed
    assert "Continuing after step 10" in printed
    assert (workdir / "damaged" / "12").is_dir()
    assert_same(workdir, uninterrupted)


def changed_at(workdir):
    """Lists each file's time of change, except the lock's."""
    return sorted((p, p.stat().st_mtime_ns) for p in workdir.rglob("*") if p.is_file() and p.name != LOCK)


def test_when_all_checkpoints_are_damaged_nothing_is_overwritten(uninterrupted, tmp_path, refused):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted, workdir)
    for file in (workdir / "checkpoints").rglob("manifest.ocdbt"):
        file.write_bytes(b"")
    before = changed_at(workdir)
    assert "None of the checkpoints" in refused(main.main, arguments(workdir, **RESUMED))
    assert changed_at(workdir) == before


def test_best_is_the_last_highest_validation_accuracy_and_is_kept(uninterrupted):
    lines = [line for line in record(uninterrupted) if line["split"] == "validation"]
    best = max(lines, key=lambda line: (line["accuracy"], line["step"]))
    result = json.loads((uninterrupted / "result.json").read_text())
    assert result["best_step"] == best["step"]
    assert result["best"]["validation"]["accuracy"] == best["accuracy"]
    assert (uninterrupted / "checkpoints" / str(best["step"])).is_dir()


def test_an_epochs_line_averages_all_of_its_steps(uninterrupted, tmp_path):
    assert main.main(arguments(tmp_path / "run", **RESUMED, train__log_every="1 step")) == 0
    losses = [line["loss"] for line in record(tmp_path / "run") if line["split"] == "train"]
    epochs = {line["step"]: line["loss"] for line in record(uninterrupted) if line["split"] == "epoch"}
    assert epochs == {5: pytest.approx(np.mean(losses[:5])), 10: pytest.approx(np.mean(losses[5:10]))}


def test_a_second_run_in_the_same_folder_is_refused(uninterrupted, refused):
    before = (uninterrupted / "config.json").read_text()
    with claimed(uninterrupted, read_config(uninterrupted), {}):
        longer = arguments(uninterrupted, **RESUMED | {"train__length": "14 steps"})
        assert "Another process is training in" in refused(main.main, longer)
    assert (uninterrupted / "config.json").read_text() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model__width": 32, "seed": 3, "train__length": "20 steps"},
            "holds a run of another config: model.width was 16 and is now 32; seed was 0 and is now 3. Choose",
        ),
        ({"train__length": "3 steps"}, "has been trained for 12 steps, but train.length is 3 steps"),
    ],
)
def test_another_config_is_refused_naming_the_fields(uninterrupted, refused, changes, message):
    before = changed_at(uninterrupted)
    assert message in refused(main.main, arguments(uninterrupted, **RESUMED | changes))
    assert changed_at(uninterrupted) == before


@pytest.mark.parametrize(("step", "split", "name"), [("best", "test", "best"), ("last", "validation", "final")])
def test_evaluate_gets_the_same_numbers(uninterrupted, step, split, name):
    result = json.loads((uninterrupted / "result.json").read_text())
    at, metrics = evaluate.evaluate(uninterrupted, step, split)
    assert at == (result["best_step"] if step == "best" else 12)
    assert metrics == result[name][split]


def test_evaluate_tells_of_mistakes(uninterrupted, tmp_path, refused):
    for workdir, flag, message in (
        (tmp_path, "--split=test", "has no config.json"),
        (uninterrupted, "--step=7", "--step=7 has no checkpoint; choose last, best or one of"),
        (uninterrupted, "--config.model.depth=2", "--config.model.depth is what the run was trained with"),
        (uninterrupted, "--split=tset", "Did you mean 'test'?"),
    ):
        assert message in refused(evaluate.main, [f"--workdir={workdir}", flag])


class Killed(BaseException):
    """Ends a run without a chance to save."""


@contextlib.contextmanager
def killed(step):
    """Kills a run after a step."""
    account = TrainingRun._account

    def until(run, before, count, *rest):
        account(run, before, count, *rest)
        if before < step <= before + count:
            raise Killed

    with mock.patch.object(TrainingRun, "_account", until), pytest.raises(Killed):
        yield


def test_a_length_lowered_to_where_the_run_stands_measures_there_and_a_longer_one_takes_the_result(
    tmp_path, monkeypatch
):
    never = {"train__eval_every": "0 steps", "train__checkpoint_every": "4 steps"}
    with killed(6):
        main.main(arguments(tmp_path / "run", **never))
    monkeypatch.setattr(Setup, "fresh", None)  # what is restored is not made first
    assert main.main(arguments(tmp_path / "run", **never | {"train__length": "4 steps"})) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["best_step"]) == (4, 4)
    assert result["best"]["validation"]["loss"] == result["final"]["validation"]["loss"]
    with killed(5):
        main.main(arguments(tmp_path / "run", **never))
    assert not (tmp_path / "run" / "result.json").exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["length"] == "12 steps"


def test_a_signal_during_the_report_ends_the_program(uninterrupted, tmp_path, monkeypatch, capsys):
    shutil.copytree(uninterrupted, tmp_path / "run")
    before, met = signal.getsignal(signal.SIGTERM), []
    monkeypatch.setattr(report, "write", lambda *_: met.append(signal.getsignal(signal.SIGTERM)))
    assert main.main(arguments(tmp_path / "run", **RESUMED)) == 0
    assert met == [before]
    assert "Already finished after step 12" in said(capsys)


def test_a_loss_that_is_not_finite_stops_with_the_step_and_the_batch(tmp_path, capsys):
    options = {"optimizer__learning_rate": 1e30, "optimizer__warmup": "0 steps", "optimizer__clip": 0.0}
    assert main.main(arguments(tmp_path / "run", **options)) == cli.DIVERGED
    printed = capsys.readouterr().err
    assert "at step 2, on the training examples [" in printed
    assert "no checkpoint was saved yet" in printed
    assert not [p for p in (tmp_path / "run" / "checkpoints").glob("*") if p.name.isdigit() and int(p.name) >= 2]


def test_a_damaged_best_gives_way_to_the_best_that_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(TrainingRun, "_value", lambda _, metrics: metrics["loss"])  # which falls: the first is the best
    command = arguments(tmp_path / "run", train__checkpoint_every="4 steps")
    assert main.main(command) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best_step"] == 4
    (tmp_path / "run" / "checkpoints" / "4" / "state" / "manifest.ocdbt").unlink()
    capsys.readouterr()
    assert main.main(command) == 0
    printed = said(capsys)
    assert "The checkpoint of step 4 cannot be read (" in printed
    assert "there are [4, 8, 12]. It was the best; the best of the others is step 8." in printed
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best_step"] == 8
    (eighth,) = [line for line in record(tmp_path / "run") if line["split"] == "validation" and line["step"] == 8]
    assert result["best"]["validation"]["loss"] == eighth["loss"]
    assert result["best"]["test"]["loss"] != result["final"]["test"]["loss"]
