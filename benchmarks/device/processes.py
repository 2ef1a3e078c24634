"""The processes that hold the device, one stack at a time, and what becomes of an item that one of them dies of."""

import contextlib
import dataclasses
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.device.items import Item, Row
from benchmarks.device.record import Results

COMPILING, MEASURING = 300.0, 200.0  # seconds without a word after which a process is given up
LOG = "device.log"


class TimeIsUp(Exception):
    """The call's time is up."""


@dataclasses.dataclass
class Session:
    """The measuring of one call.

    Attributes:
      record: Where rows go.
      end: When the call ends, in seconds of `time.monotonic`.
      tiny: Whether sizes are toy sizes.
      programs: The folder of compiled programs.
      worker: The command of the process that measures; the stack follows.
    """

    record: Results
    end: float
    tiny: bool
    programs: Path
    worker: Sequence[str] = (sys.executable, "-m", "benchmarks.device.worker")

    def measure(self, items: Sequence[Item]) -> None:
        """Measures items in their order, until the time is up."""
        with contextlib.suppress(TimeIsUp):
            for _, some in itertools.groupby(items, lambda item: (item.group, item.stack)):
                for item in self._together(list(some)):
                    self._process([item])

    def _together(self, items: list[Item]) -> list[Item]:
        """Measures items in as few processes as it takes; returns those that may have ended one, to be tried alone."""
        suspects: list[Item] = []
        while items:
            blamed = self._process(items)
            suspects += [item for item in items if item.name in blamed]
            items = [item for item in self.record.missing(items, again=False) if item.name not in blamed]
        return suspects

    def _process(self, items: list[Item]) -> list[str]:
        """Measures items in one process; returns the names of those that were in flight where it has failed.

        Where there is but one, or where the process does not start, they fail.
        """
        watch = Watch(self.record, items[0].stack)
        with self._started(items) as process:
            failure = watch.follow(_lines(process), self.end) or _ending(process)
        if not failure:
            return []
        blamed = watch.in_flight if watch.device else [item.name for item in items]
        if len(items) > 1 and watch.device:
            return blamed or [items[0].name]
        why = f"{failure}; {_last_line(self._log)}" if self._log.exists() else failure
        for name in [item.name for item in items]:
            watch.add(name, {"failed": why})
        return []

    @property
    def _log(self) -> Path:
        return self.record.path.parent / LOG

    @contextlib.contextmanager
    def _started(self, items: list[Item]) -> Iterator[subprocess.Popen]:
        """Starts a process in a group of its own, which ends with all that it has started and with their files."""
        command = [*self.worker, items[0].stack, *["--tiny"] * self.tiny]
        pipe = subprocess.PIPE
        with tempfile.TemporaryDirectory() as scratch, self._log.open("ab") as log:
            given = _environment(items[0].stack, self.programs, self.tiny) | {"TMPDIR": scratch}
            process = subprocess.Popen(
                command, cwd=measure.ROOT, env=given, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
            )
            try:
                process.stdin.write(json.dumps([item.name for item in items]).encode())
                process.stdin.close()
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _environment(stack: str, programs: Path, tiny: bool) -> dict[str, str]:
    """Returns the variables of a process: the user's, defaults where there are none, and JAX off PyTorch's device."""
    given = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    given |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_CPP_MIN_LOG_LEVEL": "2"}
    given |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"} if tiny else {}
    return given | os.environ | ({"JAX_PLATFORMS": "cpu"} if stack == "torch" else {})


@dataclasses.dataclass
class Watch:
    """What is known of a process from what it says.

    Attributes:
      record: Where rows go.
      stack: The process's.
      device: Whether it has found its device.
      in_flight: The items that it compiles or measures.
      patience: Seconds that it may be silent.
    """

    record: Results
    stack: str
    device: bool = False
    in_flight: list[str] = dataclasses.field(default_factory=list)
    patience: float = COMPILING

    def follow(self, lines: "queue.Queue[bytes | None]", end: float) -> str:
        """Reads lines until there are no more; returns why the process had to be given up, '' if it had not.

        Raises:
          TimeIsUp: the call's time is up.
        """
        while True:
            left = end - time.monotonic()
            try:
                line = lines.get(timeout=max(0.0, min(left, self.patience)))
            except queue.Empty:
                if left <= self.patience:
                    raise TimeIsUp from None
                return f"It took longer than {self.patience:.0f} s"
            if line is None:
                return ""
            self.read(**json.loads(line))

    def read(
        self,
        about: dict[str, Any] | None = None,
        compiling: Sequence[str] = (),
        compiled: str = "",
        begun: str = "",
        name: str = "",
        row: Row | None = None,
    ) -> None:
        """Takes one line of `benchmarks.device.worker`."""
        if about:
            self.device = True
            self.record.about(self.stack, about)
        if compiling:
            self.in_flight, self.patience = list(compiling), COMPILING
        if compiled:
            self.in_flight.remove(compiled)
        if begun:
            self.in_flight, self.patience = [begun], MEASURING
        if row is not None:
            self.in_flight, self.patience = [], COMPILING
            self.add(name, row)

    def add(self, name: str, row: Row) -> None:
        """Adds a row and prints it."""
        self.record.add(name, row)
        print(f"{name}: {brief(row)}", flush=True)


def brief(row: Row) -> str:
    """Says a row in a few words."""
    for kind in ("failed", "refused", "skipped"):
        if kind in row:
            return f"{kind}: {row[kind].splitlines()[0][:160]}"
    return ", ".join(f"{name} {value:.4g}" for name, value in row.items() if isinstance(value, float))


def _lines(process: subprocess.Popen) -> "queue.Queue[bytes | None]":
    """Reads a process's lines as they come, and None at their end."""
    lines: queue.Queue[bytes | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _ending(process: subprocess.Popen) -> str:
    code = process.wait()
    if code < 0:
        return f"The process was ended by {signal.Signals(-code).name}"
    return f"The process ended with exit code {code}" if code else ""


def _last_line(log: Path) -> str:
    """Returns the last line that a process has written, without what precedes its message."""
    written = [line for line in log.read_text(errors="replace").splitlines()[-50:] if line.strip()]
    return written[-1].strip()[-300:] if written else ""
