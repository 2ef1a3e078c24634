"""A training small enough for a test."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from train import main

TINY = {
    "model.depth": "1",
    "model.width": "16",
    "model.heads": "4",
    "model.mlp": "32",
    "data.batch_size": "32",
    "data.eval_batch_size": "120",
    "optimizer.warmup": "2 steps",
    "train.length": "12 steps",
    "train.log_every": "3 steps",
    "train.eval_every": "4 steps",
    "train.checkpoint_every": "2 steps",
}


def arguments(workdir: Path | str, **changes: Any) -> list[str]:
    """Makes the command line of a tiny run; `train__length` stands for `train.length`."""
    changes = {name.replace("__", "."): str(value) for name, value in changes.items()}
    config = changes.pop("config", "configs/vit_digits.py")
    return [
        f"--config={config}",
        f"--workdir={workdir}",
        *(f"--config.{name}={value}" for name, value in (TINY | changes).items()),
    ]


# An epoch has five steps, so that one ends at 5, where there is no checkpoint.
RESUMED = {"train__ema": 0.9, "data__mixup": 0.2, "train__accumulate": 2, "data__train_split": "train[:160]"}


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """Trains a run without stopping it."""
    workdir = tmp_path_factory.mktemp("whole") / "run"
    assert main.main(arguments(workdir, **RESUMED)) == 0
    return workdir


@pytest.fixture
def files_up_to():
    """Limits the size of files, as a quota would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def faulty(fault: str, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs `train.main` in a new process to which something happens; see `tests/train/faulty.py`."""
    command = [sys.executable, "-m", "tests.train.faulty", *arguments]
    environment = os.environ | {"FAULT": fault, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, **options)


def kill_9(step: int, *arguments: str) -> None:
    """Runs `train.main` until it is killed after reading a step."""
    killed = faulty(f"{step} SIGKILL", *arguments)
    assert killed.returncode == -signal.SIGKILL, killed.stderr


def record(workdir: Path) -> list[dict]:
    """Reads the lines of metrics.jsonl without the numbers of the wall clock."""
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith(("seconds", "_per_second"))} for line in lines]
