"""A full disk ends a run with one sentence; with space again, the same command continues bit for bit."""

import os
import resource
import subprocess

import pytest

from attention import UsageError
from tests.storm import assert_same
from tests.train.conftest import RESUMED, arguments
from train import main
from train.cli.files import read_record, write_json
from train.run.recorder import Record, TensorBoard
from train.run.workdir import claimed

pytestmark = pytest.mark.xdist_group(__name__)

LINE = {"step": 1, "split": "train", "loss": 0.5}


@pytest.fixture
def disk(tmp_path):
    """Mounts a small file system whose size in KiB can be set."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def resize(size, *options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([f"size={size}k", *options]), "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, text=True)

    mounted = resize(64)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder, lambda size: resize(size, "remount").check_returncode()
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def assert_one_sentence(capsys, reason):
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert reason in printed
    assert "free space" in printed
    assert printed.count("\n") == 1


@pytest.mark.more
@pytest.mark.parametrize("size", [1600, 25_000])
def test_a_quota_stops_with_a_sentence_and_nothing_is_lost(uninterrupted, tmp_path, files_up_to, capsys, size):
    command = arguments(tmp_path / "run", **RESUMED)
    files_up_to(size)
    assert main.main(command) == 2
    files_up_to(resource.RLIM_INFINITY)
    assert_one_sentence(capsys, "File too large")
    assert main.main(command) == 0
    assert_same(tmp_path / "run", uninterrupted)


@pytest.mark.more
def test_a_full_disk_stops_with_a_sentence_wherever_it_is_met(uninterrupted, disk, capsys):
    folder, resize = disk
    command = arguments(folder / "run", **RESUMED)
    continued = set()
    for size in (4, 16, 100, 250):
        resize(size)
        assert main.main(command) == 2
        assert_one_sentence(capsys, "No space left on device")
        continued |= {p.name for p in folder.glob("run/checkpoints/*")}
    assert "2" in continued  # some sizes held a checkpoint, from which the next continued
    resize(10_000)
    assert main.main(command) == 0
    assert_same(folder / "run", uninterrupted)


@pytest.mark.parametrize("below", [".", "deep/run"])
def test_a_link_that_leads_nowhere_is_named_and_not_taken_for_a_full_disk(tmp_path, below):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    told = pytest.raises(UsageError, match=r"\(.*/link is a link to .*/gone, which does not exist\); choose another")
    with told, claimed(tmp_path / "link" / below, {}, {}):
        pass


@pytest.mark.parametrize("name", [".lock", "data.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, name):
    with claimed(tmp_path, {}, {}):
        pass
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=r" is no file\)"), claimed(tmp_path, {}, {"data.json": "{}"}):
        pass


def test_a_line_that_did_not_fit_is_cut_off(tmp_path, files_up_to):
    lines = Record(tmp_path, 0)
    lines.write(LINE)
    size = lines.sync()
    files_up_to(size + 10)
    with pytest.raises(OSError, match="File too large"):
        lines.write(LINE | {"step": 2})
    lines.close()
    files_up_to(resource.RLIM_INFINITY)
    assert (tmp_path / "metrics.jsonl").stat().st_size > size
    again = Record(tmp_path, size)
    again.write(LINE | {"step": 3})
    again.close()
    assert [line["step"] for line in read_record(tmp_path)] == [1, 3]


def test_events_that_do_not_fit_are_an_error_and_not_a_hanging_thread(tmp_path, files_up_to):
    events = TensorBoard(tmp_path, 0)
    files_up_to(200)
    with pytest.raises(OSError, match="File too large"):
        events.write({"step": 1, "split": "train"} | {f"metric {i}": 0.5 for i in range(20)})
    events.close()


def test_json_that_does_not_fit_leaves_what_was_there(tmp_path, files_up_to):
    write_json(tmp_path / "result.json", {"a": 1})
    files_up_to(100)
    with pytest.raises(OSError, match="File too large"):
        write_json(tmp_path / "result.json", {"a": "b" * 1000})
    files_up_to(resource.RLIM_INFINITY)
    assert (tmp_path / "result.json").read_text() == '{\n  "a": 1\n}\n'
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
