"""Several processes train as one does; when one dies or is stopped, all end, and they continue together."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests import storm
from tests.conftest import ROOT
from tests.train.conftest import arguments, record
from tests.train.mesh import agreeing
from tests.train.tasks.test_translation import PAIRS
from train import main

pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]

LAUNCH = "import sys; from train.launch import launch; sys.exit(launch(int(sys.argv[1]), 2, sys.argv[3:], sys.argv[2]))"
OPTIONS = {
    "data__mixup": 0.2,
    "optimizer__schedule": "constant",
    "train__length": "12 steps",
    "train__log_every": "1 steps",
    "train__eval_every": "6 steps",
    "train__checkpoint_every": "3 steps",
}
KILLED_AFTER = 7


def launched(flags, processes=2, fault="", limit=240, cwd=ROOT):
    """Trains in several processes of two devices each.

    Args:
      flags: The flags of `train.main`.
      processes: The number of processes.
      fault: What happens to process 1; see `faulty.py`.
      limit: The seconds within which all must end.
      cwd: The folder in which they start.
    """
    command = ["-c", LAUNCH, str(processes), "tests.train.faulty" if fault else "train.main", *flags]
    environment = os.environ | {"FAULT": fault, "PROCESS": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=limit
    )


def losses(workdir):
    """Reads the loss of every step."""
    return {line["step"]: line["loss"] for line in record(workdir) if line["split"] == "train"}


def arrays(workdir, step):
    return storm.arrays(workdir / "checkpoints" / str(step))


def assert_same_losses(one, other):
    assert list(losses(one)) == list(losses(other)) == list(range(1, 13))
    np.testing.assert_allclose(list(losses(one).values()), list(losses(other).values()), rtol=1e-5)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Trains in one process with one device, from start to end."""
    workdir = tmp_path_factory.mktemp("alone") / "run"
    assert main.main(arguments(workdir, **OPTIONS)) == 0
    return workdir


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Trains in two processes of two devices, from start to end."""
    workdir = tmp_path_factory.mktemp("two") / "run"
    done = launched(arguments(workdir, **OPTIONS))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Devices: 4 cpu" in done.stdout
    return workdir


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Trains in two processes until the second is killed."""
    workdir = tmp_path_factory.mktemp("killed") / "run"
    done = launched(arguments(workdir, **OPTIONS), fault=f"{KILLED_AFTER} SIGKILL", limit=120)
    return workdir, done


def test_two_processes_equal_one(alone, two):
    assert_same_losses(alone, two)
    for line, other in zip(record(alone), record(two), strict=True):
        assert line.keys() == other.keys()
        np.testing.assert_allclose(list(line.values())[2:], list(other.values())[2:], rtol=1e-4)


def test_when_one_is_killed_all_end_and_the_last_line_says_which(killed):
    _, done = killed
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last == "Process 1 of 2 died by SIGKILL; the same command continues from the last checkpoint."


def test_what_was_killed_continues_bit_for_bit(killed, two, tmp_path):
    workdir = shutil.copytree(killed[0], tmp_path / "run")
    done = launched(arguments(workdir, **OPTIONS))
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = re.findall(r"Continuing after step (\d+) ", done.stdout)
    assert 0 < int(step) <= KILLED_AFTER + 1
    assert record(workdir) == record(two)
    jax.tree.map(np.testing.assert_array_equal, arrays(workdir, 12), arrays(two, 12))


def test_saved_by_two_processes_on_four_devices_it_continues_on_one(killed, alone, tmp_path, capsys):
    workdir = shutil.copytree(killed[0], tmp_path / "run")
    assert main.main(arguments(workdir, **OPTIONS)) == 0
    assert "Continuing after step" in capsys.readouterr().out
    assert_same_losses(alone, workdir)


@pytest.mark.parametrize("name", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.long)])
def test_a_signal_to_one_stops_all_at_one_step_and_saves(tmp_path, name):
    workdir = tmp_path / "run"
    never = {f"train__{what}_every": "0 steps" for what in ("log", "eval", "checkpoint")}
    done = launched(arguments(workdir, **OPTIONS | never | {"train__length": "100000 steps"}), fault=f"3 {name}")
    assert done.returncode == 0, done.stdout + done.stderr
    (step,) = re.findall(r"Stopped after step (\d+) and saved", done.stdout)
    assert [path.name for path in (workdir / "checkpoints").iterdir()] == [step]
    assert arrays(workdir, step)["step"] == int(step) > 3


@pytest.mark.long
def test_a_second_signal_ends_all_at_once_and_harms_nothing(two, tmp_path):
    command = arguments(tmp_path / "run", **OPTIONS)
    done = launched(command, fault=f"{KILLED_AFTER} SIGTERM SIGTERM", limit=60)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("Process 1 of 2 died by SIGTERM")
    done = launched(command)
    assert done.returncode == 0, done.stdout + done.stderr
    storm.assert_same(tmp_path / "run", two)


def test_data_that_one_process_lacks_end_all_with_one_sentence(tmp_path):
    for folder in ("there/text", "not_there"):
        (tmp_path / folder).mkdir(parents=True)
    for split in ("train", "validation", "test"):
        (tmp_path / "there" / "text" / f"{split}.txt").write_text("A few words.\n" * 100)
    flags = ["--config=configs/gpt_pydoc.py", "--config.data.source=file:text", f"--workdir={tmp_path / 'run'}"]
    done = launched(flags, fault=f"0 {tmp_path / 'not_there'}", limit=120, cwd=tmp_path / "there")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("error: Process 1 of 2: There is no file to read at 'text'")
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def agreed(tmp_path_factory):
    """Collects what two processes, which SLURM seems to have started, find out about each other."""
    folder = tmp_path_factory.mktemp("agreed")
    write_pairs(folder / "pairs")
    slurm = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.mesh.agreeing", str(folder)],
            cwd=ROOT,
            env=os.environ | slurm | {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    said = [process.communicate(timeout=240)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(text.splitlines()[-1]) for text in said], folder


def write_pairs(folder):
    """Writes sentences for `agreeing.translations`."""
    folder.mkdir()
    lines = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    for split in ("train", "val", "test"):
        (folder / f"{split}.txt").write_text(lines, encoding="utf-8")


def test_processes_of_slurm_find_one_another(agreed):
    found, _ = agreed
    assert [one["process"] for one in found] == [0, 1]
    assert all(one["processes"] == 2 and one["devices"][1] == 2 * one["devices"][0] for one in found)
    assert all(one["said"] == ["I am 0", "I am 1"] and one["first"] == "I am 0" for one in found)


@pytest.mark.parametrize(
    ("what", "start"),
    [
        ("one fails", "Process 1 of 2: No good."),
        ("all fail", "No good."),
        ("claimed by another config", "{run} holds a run of another config: seed was 0 and is now 1."),
        ("claimed by different configs", "Process 1 of 2 has another config or other data than process 0"),
        ("claimed twice", "Another process is training in {run}"),
        ("not shared", "Process 1 of 2: {folder}/of_1 is not the folder that process 0 writes to"),
        *((what, "") for what in ("none fails", "claimed", "claimed again")),
    ],
)
def test_a_mistake_is_the_same_error_in_all_and_what_is_right_passes(agreed, what, start):
    found, folder = agreed
    wanted = start.format(run=folder / "run", folder=folder)
    for one in found:
        kind, sentence = one[what] or ("", "")
        assert kind == ("SharedError" if start else "")
        assert sentence.startswith(wanted)


def test_translating_together_finds_what_one_finds(agreed):
    found, folder = agreed
    alone = agreeing.translations(folder / "pairs")
    assert len(set(alone[0])) > 1
    assert len(alone[0]) == len(PAIRS)
    for one in found:
        assert one["translations"] == alone


@pytest.mark.long
def test_four_processes_equal_one(alone, tmp_path):
    done = launched(arguments(tmp_path / "run", **OPTIONS), processes=4)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Devices: 8 cpu" in done.stdout
    assert_same_losses(alone, tmp_path / "run")


@pytest.mark.long
@pytest.mark.parametrize("process", [0, 1])
def test_a_killed_process_is_noticed_without_a_launcher(tmp_path, process):
    """The others notice its lost connection or heartbeat within a minute."""
    port = 20000 + os.getpid() % 20000
    flags = [f"--coordinator=127.0.0.1:{port}", "--num-processes=2", *arguments(tmp_path / "run", **OPTIONS)]
    job = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.train.faulty", *flags, f"--process-id={index}"],
            cwd=ROOT,
            env=os.environ | {"FAULT": f"{KILLED_AFTER} SIGKILL", "PROCESS": str(process)},
        )
        for index in range(2)
    ]
    assert job[process].wait(timeout=240) == -signal.SIGKILL
    assert job[1 - process].wait(timeout=60) != 0
