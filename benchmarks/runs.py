"""Runs of `python -m train.main`, one on each CPU at a time, and tables of them in the docs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

ROOT = Path(__file__).parent.parent


def train_all(todo: Mapping[Path, Sequence[str]], say: Callable[[dict[str, Any]], str]) -> None:
    """Trains what has no result yet, and prints a line for each run.

    Each process has a CPU of its own, so that none waits for another's threads. Stopped at any moment, it goes on where
    it was.

    Args:
      todo: From a work directory to the flags of its run.
      say: From a run's `result.json` to what is printed of it.
    """
    cpus: SimpleQueue[int] = SimpleQueue()
    for cpu in sorted(os.sched_getaffinity(0)):
        cpus.put(cpu)

    def one(item: tuple[Path, Sequence[str]]) -> None:
        cpu = cpus.get()
        try:
            _train(*item, say, cpu)
        finally:
            cpus.put(cpu)

    with ThreadPoolExecutor(cpus.qsize()) as pool:
        list(pool.map(one, todo.items()))


def _train(workdir: Path, flags: Sequence[str], say: Callable[[dict[str, Any]], str], cpu: int) -> None:
    if not (workdir / "result.json").exists():
        workdir.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "train.main", *flags, f"--workdir={workdir.resolve()}"]
        with Path(f"{workdir}.log").open("w") as log:
            pin = lambda: os.sched_setaffinity(0, {cpu})  # noqa: E731
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, preexec_fn=pin).returncode
        if code:
            print(f"{workdir.name}: failed, see {workdir}.log", flush=True)
            return
    print(f"{workdir.name}: {say(result(workdir))}", flush=True)


def name_of(spec: str) -> str:
    """A spec string as part of a folder's name."""
    return "".join(c if c.isalnum() or c in "_.=" else "-" for c in spec)


def result(workdir: Path) -> dict[str, Any] | None:
    """What a finished run came to; None where it has not finished."""
    path = workdir / "result.json"
    return json.loads(path.read_text()) if path.exists() else None


def put_between(page: Path, start: str, end: str, text: str) -> None:
    """Replaces what a page has between two marks."""
    before, rest = page.read_text().split(start)
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{rest.split(end)[1]}")
