"""Loggers get the record's lines; their errors are sentences, and end no run."""

import dataclasses
import sys
import types

import pytest

from attention import UsageError
from tests.train.run.test_recorder import Quiet
from train.cli.files import read_record
from train.config.schema import TrainConfig
from train.run.recorder import Recorder

LINES = [("train", 3, {"loss": 0.5}), ("validation", 4, {"loss": 0.25, "accuracy": 1.0})]


class Kept:
    def __init__(self, directory, config):
        self.lines, self.closed, self.made = [], False, (directory, config)
        Kept.last = self

    def write(self, line):
        self.lines.append(dict(line))
        line.clear()  # which harms nobody

    def close(self):
        self.closed = True


class Broken(Kept):
    def write(self, line):
        raise ConnectionError("no network\nat all")

    def close(self):
        raise ConnectionError("still none")


@pytest.fixture
def mine(monkeypatch):
    module = types.ModuleType("mine")
    module.Kept, module.Broken, module.fails = Kept, Broken, lambda directory, config: 1 / 0
    monkeypatch.setitem(sys.modules, "mine", module)


def write(folder, names):
    setup = types.SimpleNamespace(**{name: getattr(Quiet, name) for name in ("replicas", "timetable", "task")})
    setup.config = dataclasses.replace(Quiet.config, train=TrainConfig(loggers=names))
    recorder = Recorder(folder, setup, 0, {})
    for split, step, metrics in LINES:
        recorder.write(split, step, {0: metrics}, 2.0)
    recorder.close()
    return read_record(folder)


def test_every_line_comes_with_the_folder_and_the_config_before(tmp_path, mine):
    record = write(tmp_path, "mine:Kept")
    assert Kept.last.lines == record
    assert Kept.last.closed
    directory, config = Kept.last.made
    assert (directory, config["train"]["loggers"]) == (tmp_path, "mine:Kept")


def test_one_that_fails_is_said_once_and_the_others_go_on(tmp_path, mine, capsys):
    record = write(tmp_path, "mine:Broken,mine:Kept")
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count("The logger 'mine:Broken' failed (ConnectionError: no network); the run goes on") == 1
    assert "still none" not in printed
    assert Kept.last.lines == record
    assert len(record) == 2


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_a_tracker_gets_numbers_by_step_and_continues_its_run(tmp_path, monkeypatch, tracker):
    """Weights & Biases knows a run by its id, Trackio by its name."""
    logged, begun = [], []
    run = types.SimpleNamespace(log=lambda numbers, step: logged.append((step, numbers)), finish=lambda: None)
    module = types.ModuleType(tracker)
    module.init = lambda **options: begun.append(options) or run
    monkeypatch.setitem(sys.modules, tracker, module)
    for folder in ("a/seed0", "b/seed0", "b/seed0"):  # the last continues
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "metrics.jsonl").unlink(missing_ok=True)
        write(tmp_path / folder, tracker)
    one, other, again = (options["id" if tracker == "wandb" else "name"] for options in begun)
    assert one != other == again
    assert begun[0]["name"].startswith("seed0")
    assert begun[0]["resume"] == "allow"
    assert begun[0]["config"]["train"]["loggers"] == tracker
    assert begun[0].keys() - {"id", "dir"} == {"project", "name", "config", "resume"}
    assert [step for step, _ in logged] == [3, 4] * 3
    assert {"validation/loss": 0.25, "validation/accuracy": 1.0}.items() <= logged[1][1].items()


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("wand", r"Unknown train.loggers 'wand'\. Did you mean 'wandb'"),
        ("mine:", "Unknown train.loggers 'mine:'"),
        ("wandb,", "Unknown train.loggers ''"),
        ("wandb", r"needs the module 'wandb' \(.*\): pip install wandb, or leave it out"),
        ("trackio", r"needs the module 'trackio' \(.*\): pip install trackio, or leave it out"),
        ("absent:f", "needs the module 'absent'"),
        ("mine:kept", r"Unknown function of mine in train.loggers 'kept'\. Did you mean 'Kept'"),
        ("builtins:print", r"'builtins:print' returns None, which lacks a method write or close; return a logger"),
        ("mine:fails", r"'mine:fails' cannot start \(ZeroDivisionError: division by zero\)"),
    ],
)
def test_mistakes(tmp_path, mine, monkeypatch, names, message):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UsageError, match=message):
        write(tmp_path, names)
