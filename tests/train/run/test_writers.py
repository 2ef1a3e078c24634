"""The record is cut back to its checkpoint, and TensorBoard's file holds the same numbers."""

import contextlib
import json
import struct

import matplotlib
import pytest
from tensorboardX.proto.event_pb2 import Event

from attention import UsageError
from train.run import curves
from train.run.writers import Record, Writers, read_record, write_json

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


def test_tensorboard_holds_every_number_under_its_split(tmp_path):
    writers = Writers(tmp_path, step=0, size=0, active=True)
    writers.write(LINE)
    writers.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    found = {value.tag: value.simple_value for event in events(path.read_bytes()) for value in event.summary.value}
    assert found == {"train/loss": 0.5, "train/accuracy": 0.25}


def events(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_other_processes_write_nothing(tmp_path):
    writers = Writers(tmp_path, step=0, size=0, active=False)
    writers.write(LINE)
    writers.close()
    assert writers.sync() == 0
    assert not list(tmp_path.iterdir())


def test_json_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": 1})
    with contextlib.suppress(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_curves_draw_a_panel_a_metric(tmp_path):
    lines = [LINE, LINE | {"split": "validation"}, LINE | {"split": "test"}]
    one, two = tmp_path / "one.png", tmp_path / "two.png"
    matplotlib.use("svg")
    curves.draw([{k: v for k, v in line.items() if k != "accuracy"} for line in lines], one)
    curves.draw(lines, two)
    width, wider = (struct.unpack(">I", path.read_bytes()[16:20])[0] for path in (one, two))
    assert wider == 2 * width
    assert matplotlib.get_backend() == "svg"  # the caller's


def test_a_damaged_record_is_one_sentence(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n')
    with pytest.raises(UsageError, match=r"metrics.jsonl is damaged .* remove the broken line"):
        read_record(tmp_path)
