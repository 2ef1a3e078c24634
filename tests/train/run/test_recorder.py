"""The record is cut back to its checkpoint, TensorBoard has the same numbers, and long lines are wrapped."""

import json
import struct

import jax
import matplotlib
import pytest
from tensorboardX.proto.event_pb2 import Event

from attention import UsageError
from train.cli.files import read_record
from train.config.schema import Config, MeshConfig
from train.config.timetable import Timetable
from train.mesh import processes, sharding
from train.mesh.replicas import Replicas
from train.run import report
from train.run.recorder import Record, Recorder, set_aside
from train.tasks import Task

LINE = {"step": 3, "split": "train", "loss": 0.5, "accuracy": 0.25}


def test_what_was_written_after_the_checkpoint_is_cut_off(tmp_path):
    record = Record(tmp_path, 0)
    record.write(LINE)
    size = record.sync()
    record.write(LINE | {"step": 4})
    record.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "sp')  # a line that a kill has torn
    again = Record(tmp_path, size)
    again.write(LINE | {"step": 6})
    again.close()
    assert [line["step"] for line in read_record(tmp_path)] == [3, 6]


@pytest.mark.parametrize("left", [None, b"", b'{"step": 3}\n'])
def test_a_record_that_has_lost_lines_is_refused_as_it_is(tmp_path, left):
    path = tmp_path / "metrics.jsonl"
    if left is not None:
        path.write_bytes(left)
    with pytest.raises(UsageError, match=f"metrics.jsonl has {len(left or b'')} bytes, but the checkpoint counts 100,"):
        Record(tmp_path, 100)
    assert (path.read_bytes() if path.exists() else None) == left


def test_a_record_without_checkpoints_is_kept_and_said_to_be(tmp_path):
    path, kept = tmp_path / "metrics.jsonl", tmp_path / "metrics.old.jsonl"
    assert set_aside(tmp_path) == []
    for text, expected in (("half", None), ("{}\n{}\n", "{}\n{}\n"), ("{}\n", "{}\n{}\n"), ("{}\n" * 3, "{}\n" * 3)):
        path.write_text(text)
        said = " ".join(set_aside(tmp_path))
        assert said.endswith(f"its former record is in {kept}.") == kept.exists() == (expected is not None)
        assert expected is None or kept.read_text() == expected


def test_a_finished_run_whose_checkpoints_are_gone_is_refused_as_it_is(tmp_path):
    files = {"metrics.jsonl": "{}\n", "result.json": "{}"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=r"a finished run whose checkpoints are gone.* or remove .*result.json to"):
        set_aside(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files


class Quiet:
    """The setup of a run of one replica, as far as a recorder needs it."""

    replicas = Replicas([0], sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]))
    timetable = Timetable(5, 6, 0, 0, 0, 0, 0)
    task = object.__new__(Task)
    config = Config("image_classification")


def test_tensorboard_holds_every_number_under_its_split(tmp_path):
    recorder = Recorder(tmp_path, Quiet, 0, {})
    recorder.write("train", 3, {0: {"loss": 0.5, "accuracy": 0.25}}, 2.0)
    recorder.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = {value.tag: value.simple_value for event in events(path.read_bytes()) for value in event.summary.value}
    assert found == {
        "train/loss": 0.5,
        "train/accuracy": 0.25,
        "train/seconds": 0.0,
        "train/examples_per_second": 2.0,
    }
    (line,) = read_record(tmp_path)
    assert {f"{line['split']}/{name}": line[name] for name in line if name not in ("step", "split")} == found


def events(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_other_processes_write_and_print_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(processes, "is_first", lambda: False)
    recorder = Recorder(tmp_path, Quiet, 0, {})
    recorder.write("train", 3, {0: {"loss": 0.5}}, 2.0)
    assert recorder.progress()["record_size"] == 0
    recorder.close()
    assert not list(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def test_long_lines_are_folded_and_paths_stay_whole(tmp_path, capsys):
    recorder = Recorder(tmp_path, Quiet, 0, {})
    text = "loss 1.0, accuracy 0.5, " * 5 + "/a/path" * 12
    recorder.say(text)
    recorder.close()
    *lines, path = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert path.strip() == "/a/path" * 12
    assert " ".join(line.strip() for line in [*lines, path]) == text


def test_a_log_says_once_that_a_step_is_compiled(tmp_path, capsys):
    recorder = Recorder(tmp_path, Quiet, 0, {})
    recorder.compiling()
    recorder.compiling()
    recorder.close()
    assert capsys.readouterr().out == "Compiling the training step\n"


def test_curves_draw_a_panel_a_metric(tmp_path):
    lines = [LINE, LINE | {"split": "validation"}, LINE | {"split": "test"}]
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    matplotlib.use("svg")
    report.draw_curves([{k: v for k, v in line.items() if k != "accuracy"} for line in lines], one)
    report.draw_curves(lines, two)
    width, wider = (struct.unpack(">I", path.read_bytes()[16:20])[0] for path in (one, two))
    assert wider == 2 * width
    assert matplotlib.get_backend() == "svg"  # the caller's


@pytest.mark.parametrize("text", ['{"st\n', "[]\n", '{"step": 1}\n', '{"step": 1, "split": "test", "loss": "0"}\n'])
def test_a_damaged_record_is_one_sentence(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(f"{json.dumps(LINE)}\n{text}")
    with pytest.raises(UsageError, match=r"metrics.jsonl, line 2 is damaged .* put the file back"):
        read_record(tmp_path)
