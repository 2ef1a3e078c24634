"""Runs of `python -m train.main`, several at a time, in processes that do not share CPUs."""

import fcntl
import functools
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from attention.errors import UsageError
from models.files import open_regular
from train import cli
from train.run import console

FINISHED, FAILED, DIVERGED, STOPPED = "finished", "failed", "diverged", "stopped"
PAUSE = 0.1  # seconds between checks of the processes


# Called with a work directory, its run's outcome, and the seconds until all runs have ended; NaN where that is unknown.
Ended = Callable[[Path, str, float], None]
Watch = Callable[[Collection[Path]], None]  # called with the work directories of what runs, again and again


def command(flags: Sequence[str], workdir: Path) -> list[str]:
    """Writes the command that trains with these flags."""
    return [*console.command("train.main"), *flags, f"--workdir={workdir.resolve()}"]


def name_of(text: str) -> str:
    """Writes a value, such as a spec string, so that it can be part of a folder's name."""
    return "".join(c if c.isalnum() or c in "_.=" else "-" for c in text)


def is_finished(workdir: Path) -> bool:
    """Tells whether a run has a result."""
    return (workdir / "result.json").is_file()


def log_of(workdir: Path) -> Path:
    """Names the log that a run's process prints to."""
    return Path(f"{workdir}.log")


def shares(jobs: int) -> list[set[int]]:
    """Divides the CPUs among processes, so that none waits for another's threads; 0 jobs is one for each CPU."""
    cpus = sorted(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))
    jobs = jobs or len(cpus)
    return [set(cpus[job::jobs]) or {cpus[job % len(cpus)]} for job in range(jobs)]


def run_all(
    todo: Mapping[Path, Sequence[str]], jobs: int, ended: Ended, watch: Watch = lambda running: None
) -> dict[Path, str]:
    """Runs the commands whose work directories have no result yet, and returns their outcomes.

    A process prints to `<work directory>.log`. A run that another call is training is waited for. SIGTERM and SIGINT
    are passed on once, so that all runs save, and no more runs start. `ended` is called as soon as a run has finished,
    failed, diverged, or stopped; the same call later continues runs that stopped.
    """
    pool = _Pool(todo, jobs, ended)
    with cli.signals_handled(pool.hear):
        try:
            while pool.waiting or pool.running:
                pool.collect()
                if pool.heard:
                    pool.stop()
                else:
                    pool.start()
                watch(pool.running)
                time.sleep(PAUSE)
        finally:
            pool.stop()  # after an error, no run goes on unnoticed
    return pool.outcomes


class _Pool:
    def __init__(self, todo: Mapping[Path, Sequence[str]], jobs: int, ended: Ended):
        self.outcomes = dict.fromkeys(todo, STOPPED)
        self.waiting, self.running = dict(todo), dict[Path, tuple[subprocess.Popen, set[int], float]]()
        self._free, self._ended, self._seconds = shares(jobs), ended, list[float]()
        self._jobs, self._stopping, self.heard = len(self._free), False, False

    def start(self) -> None:
        """Starts as many runs as there are free shares of CPUs, and skips those that have finished."""
        for workdir, command in list(self.waiting.items()):
            if is_finished(workdir):
                del self.waiting[workdir]
                self._end(workdir, FINISHED)
            elif self._free and (log := _claimed(log_of(workdir))):
                del self.waiting[workdir]
                cpus = self._free.pop(0)
                with log:
                    self.running[workdir] = (_process(command, log, cpus), cpus, time.monotonic())

    def collect(self) -> None:
        """Records which processes have ended."""
        for workdir, (process, cpus, start) in list(self.running.items()):
            if process.poll() is not None:
                del self.running[workdir]
                self._free.append(cpus)
                outcome = self._outcome(workdir, process.returncode)
                self._seconds += [time.monotonic() - start] * (outcome == FINISHED)
                self._end(workdir, outcome)

    def hear(self, number: int, before: Mapping[int, Any]) -> None:
        """Notes a signal; a second one has its former effect."""
        self.heard = True
        signal.signal(number, before[number])

    def stop(self) -> None:
        """Tells all runs to save and end, but only once, since a second signal would end them without saving."""
        if not self._stopping:
            self._stopping = True
            self.waiting.clear()
            for process, *_ in self.running.values():
                process.terminate()

    def _outcome(self, workdir: Path, code: int) -> str:
        if code == cli.DIVERGED:
            return DIVERGED
        # Our SIGTERM kills a process that does not handle signals yet; it has nothing to save.
        if code not in (0, -signal.SIGTERM if self._stopping else 0):
            return FAILED
        return FINISHED if is_finished(workdir) else STOPPED

    def _end(self, workdir: Path, outcome: str) -> None:
        self.outcomes[workdir] = outcome
        self._ended(workdir, outcome, self._left())

    def _left(self) -> float:
        """Estimates the seconds until all runs have ended, from the mean of those that have finished here."""
        runs = len(self.running) + len(self.waiting)
        if not self._seconds:
            return math.nan if runs else 0.0
        spent = sum(time.monotonic() - start for *_, start in self.running.values())
        work = max(runs * statistics.mean(self._seconds) - spent, 0.0)
        return work / max(min(self._jobs, runs), 1)


def _claimed(path: Path) -> IO[str] | None:
    """Opens a log and locks it until this call and the process have closed it; returns None where it is locked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = open_regular(path, "a", encoding="utf-8")
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log.close()
        return None
    except OSError as error:
        log.close()
        raise UsageError(
            f"{path} cannot be locked ({error.strerror}), so two sweeps might train one run; choose a --workdir on a "
            "file system with locks."
        ) from error
    return log


def _process(command: Sequence[str], log: IO[str], cpus: set[int]) -> subprocess.Popen:
    """Starts a process in a session of its own, so that Ctrl-C reaches it once, through this process."""
    inputs = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
    start = functools.partial(subprocess.Popen, command, **inputs, start_new_session=True)
    if not hasattr(os, "sched_setaffinity"):
        return start()
    ours = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)  # a child inherits its parent's CPUs
    try:
        return start()
    finally:
        os.sched_setaffinity(0, ours)
