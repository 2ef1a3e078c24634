"""Stop a sweep at each of its changes to its folder, start it again, and see that it ends as if nothing had happened.

python -m tests.crashes tuned
python -m tests.crashes together --every=10 --fault=full

Trainings are replaced: in a tuned sweep by results that are written at once, and for runs that train together by copies
of one training. What other processes and libraries in C++ write does not count.
"""

import argparse
import builtins
import errno
import io
import json
import os
import pickle
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.train import test_sweep
from train import cli, sweep
from train.grids import matching, pool, running

KILL, FULL = "kill", "full"  # what happens at a change: the process is killed, or the disk takes no more from then on
NAMES = ("mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "truncate")
GROWS = ("mkdir", "rename", "replace", "link", "symlink", "open")  # what a full disk refuses
# What the faults end with; a disk may be full when nothing is left to be written.
ENDS = {KILL: (-signal.SIGKILL,), FULL: (cli.DONE, cli.FAILED, cli.MISTAKE)}
COPY = "import shutil, sys; shutil.copytree(sys.argv[1], sys.argv[2], dirs_exist_ok=True)"


class Changes:
    """Counts this process's changes below a folder; the fault happens at number `at`."""

    def __init__(self, folder: Path, at: int, fault: str):
        self.count, self._folder, self._at, self._fault = 0, str(folder), at, fault
        for name in NAMES:
            setattr(os, name, self._watched(getattr(os, name), name))
        builtins.open = io.open = self._watched(builtins.open, "open")

    def _watched(self, function: Callable, name: str) -> Callable:
        def call(path: Any, *more: Any, **options: Any) -> Any:
            mode = options.get("mode", *more[:1]) if name == "open" else "w"
            if not isinstance(path, int) and (set(mode or "r") & set("wax+")):
                self._change(name, path, options.get("dir_fd"))
            return function(path, *more, **options)

        return call

    def _change(self, name: str, path: Any, within: int | None) -> None:
        path = os.path.abspath(os.fsdecode(path))
        if within is None and not path.startswith(self._folder):
            return
        self.count += 1
        if self._fault == KILL and self.count == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._fault == FULL and 0 < self._at <= self.count and name in GROWS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def forked(program: Callable[[], int], folder: Path, at: int = 0, fault: str = KILL) -> tuple[int, int, str]:
    """Runs a program in a child; returns its exit code, how many changes it made, and what it said."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as counted:
        if not (process := os.fork()):
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            changes, code = Changes(folder, at, fault), 99
            try:
                code = program()
            except BaseException:
                traceback.print_exc()
            print(changes.count, file=counted, flush=True)
            sys.stdout.flush()
            os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        said.seek(0)
        counted.seek(0)
        return code, int(counted.read() or 0), said.read()


def failures(program: Callable[[], int], folder: Path, every: int, fault: str) -> Iterator[str]:
    """Yields what went wrong after a fault at every so many changes, and in the end how many faults there were."""
    code, count, said = forked(program, folder)
    whole = results(folder)
    if code or not whole or not count:
        yield f"Without a fault it ends with {code}, after {count} changes:\n{said}"
    for at in range(1, count + 1, every):
        shutil.rmtree(folder, ignore_errors=True)
        code, _, said = forked(program, folder, at, fault)
        if code not in ENDS[fault] or "Traceback" in said:
            yield f"With a fault at change {at} of {count} it ends with {code}:\n{said}"
        code, _, said = forked(program, folder)
        left = [*folder.rglob("*.tmp"), *folder.rglob("*.members.json")]
        if code or left or results(folder) != whole:
            yield f"Again after a fault at change {at} of {count} it ends with {code}, and leaves {left}:\n{said}"
    yield f"{len(range(1, count + 1, every))} faults at {count} changes."


def results(folder: Path) -> dict[Path, Any]:
    """Reads the record of a sweep, and the result of each of its runs."""
    return {path: json.loads(path.read_text()) for path in folder.rglob("*.json") if path.stem in ("sweep", "result")}


def tuned(folder: Path, place: Path) -> int:
    """Runs a sweep whose trials and runs are results that are written at once."""
    pool.command = lambda own, path: [sys.executable, "-c", test_sweep.STAND_IN, str(path), *own]
    return prepared(test_sweep.tuned(folder), place)


def together(folder: Path, place: Path) -> int:
    """Runs a sweep of two runs that train together, each time a copy of one training."""
    command = test_sweep.asked(folder, over="model.attention=super", replicas="yes")
    trained = place / "trained"
    if not trained.exists():  # the first call trains, and stops before its folder is taken apart
        running.take_apart = lambda path, members: shutil.copytree(path, trained) and sys.exit(cli.FAILED)
        return prepared(command, place)
    pool.command = lambda own, path: [sys.executable, "-c", COPY, str(trained), str(path)]
    return prepared(command, place)


def prepared(command: list[str], place: Path) -> int:
    """Runs a sweep whose settings are checked once, by the first call."""

    def checked(function: Callable, *given: Any) -> Any:
        kept = place / f"{function.__name__}.pickle"
        if not kept.exists():
            kept.write_bytes(pickle.dumps(function(*given)))
        return pickle.loads(kept.read_bytes())

    matching.in_new_process = checked
    return sweep.main(command)


def main() -> int:
    """Prints every failure; returns how the program ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sweep", choices=("tuned", "together"))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--fault", choices=(KILL, FULL), default=KILL)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        place, folder = Path(made), Path(made) / "sweep"
        if flags.sweep == "together":
            forked(lambda: together(folder, place), folder)
            shutil.rmtree(folder)
        program = {"tuned": tuned, "together": together}[flags.sweep]
        said = list(failures(lambda: program(folder, place), folder, flags.every, flags.fault))
    print(*said, sep="\n\n")
    return int(len(said) > 1)


if __name__ == "__main__":
    sys.exit(main())
