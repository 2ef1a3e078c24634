"""The processes that hold the device, one stack at a time, and the tracing of crashes to items."""

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

from attention.errors import UsageError
from benchmarks import measure
from benchmarks.device.items import Item, Row
from benchmarks.device.record import Results

PATIENCE = {"jax": 200.0, "torch": 300.0}  # seconds of silence after which a process is given up; Triton tunes long
AGAIN = 5.0  # seconds after which a process that did not start is started again
LOG = "device.log"


class TimeIsUp(Exception):
    """Raised when the call's time is up."""


@dataclasses.dataclass
class Session:
    """The measurements of a call.

    Attributes:
      results: The results, to which rows are added.
      end: The end of the call, in seconds of `time.monotonic`.
      tiny: Whether to take toy sizes.
      programs: The folder of compiled programs.
      worker: The command of the process that measures, without the stack.
    """

    results: Results
    end: float
    tiny: bool
    programs: Path
    worker: Sequence[str] = (sys.executable, "-m", "benchmarks.device.worker")

    def measure(self, items: Sequence[Item]) -> None:
        """Measures items in order, until the time is up.

        Raises:
          UsageError: No process starts, there is no GPU or TPU, or it is not the device of earlier calls.
        """
        with contextlib.suppress(TimeIsUp):
            for _, group in itertools.groupby(items, lambda item: (item.group, item.stack)):
                for item in self._together(list(group)):
                    self._process([item])

    def _together(self, items: list[Item]) -> list[Item]:
        """Measures items in as few processes as possible; returns those that may have crashed one, to be run alone."""
        suspects: list[Item] = []
        while items:
            blamed = self._process(items)
            suspects += [item for item in items if item.name in blamed]
            items = [item for item in self.results.missing(items, again=False) if item.name not in blamed]
        return suspects

    def _process(self, items: list[Item]) -> list[str]:
        """Measures items in one process; if it fails, returns the names of the items that were in flight.

        A single item fails with its process.
        """
        watch = Watch(self.results, items[0].stack, self.tiny)
        failure = self._followed(watch, items)
        if not watch.device:
            time.sleep(min(AGAIN, max(0.0, self.end - time.monotonic())))
            failure = self._followed(watch, items)
        if not watch.device:
            raise UsageError(f"The process that measures does not start: {self._why(failure)}")
        unmeasured = [item.name for item in items if item.name not in watch.reported]
        if not (failure and unmeasured):
            return []
        if len(items) > 1:
            stuck = not watch.reported  # otherwise the same would happen again and again
            return [name for name in watch.in_flight if name in unmeasured] or unmeasured[: int(stuck)]
        watch.add(unmeasured[0], {"failed": self._why(failure)})
        return []

    def _followed(self, watch: "Watch", items: list[Item]) -> str:
        """Starts a process and reads its lines until it ends; returns how it failed, '' if it did not."""
        with self._started(items) as process:
            return watch.follow(_lines(process), self.end) or _ending(process)

    def _why(self, failure: str) -> str:
        last = _last_line(self.results.path.parent / LOG)
        return f"{failure}; {last}" if last else failure

    @contextlib.contextmanager
    def _started(self, items: list[Item]) -> Iterator[subprocess.Popen]:
        """Starts a process in its own group, and ends it with all processes that it started and their files."""
        command = [*self.worker, items[0].stack, *["--tiny"] * self.tiny]
        pipe, log_file = subprocess.PIPE, self.results.path.parent / LOG
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch, log_file.open("ab") as log:
            given = _environment(items[0].stack, self.programs, self.tiny) | {"TMPDIR": scratch}
            process = subprocess.Popen(
                command, cwd=measure.ROOT, env=given, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
            )
            try:
                with contextlib.suppress(BrokenPipeError):  # it has ended already
                    process.stdin.write(json.dumps([item.name for item in items]).encode())
                    process.stdin.close()
                yield process
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _environment(stack: str, programs: Path, tiny: bool) -> dict[str, str]:
    """Makes the environment of a process that has one device to itself and reuses compiled programs."""
    defaults = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "0"}
    ours = {"JAX_COMPILATION_CACHE_DIR": str(programs), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.5"}
    ours |= {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92"}
    ours |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"} if tiny else {}
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms and "cpu" not in platforms:
        platforms += ",cpu"  # draws initial values
    return defaults | os.environ | ours | {"JAX_PLATFORMS": "cpu" if stack == "torch" else platforms}


@dataclasses.dataclass
class Watch:
    """The state of a process, known from its lines.

    Attributes:
      results: The results, to which rows are added.
      stack: The process's stack.
      tiny: Whether a CPU is allowed.
      device: Whether the process has found its device.
      in_flight: The items that it compiles or measures.
      reported: The items whose rows it has reported.
      patience: Seconds that it may be silent; 0 takes the stack's.
    """

    results: Results
    stack: str
    tiny: bool = False
    device: bool = False
    in_flight: list[str] = dataclasses.field(default_factory=list)
    reported: set[str] = dataclasses.field(default_factory=set)
    patience: float = 0.0

    def follow(self, lines: "queue.Queue[bytes | None]", end: float) -> str:
        """Reads lines until there are no more; returns why the process was given up, '' if it was not.

        Raises:
          TimeIsUp: The call's time is up.
        """
        patience = self.patience or PATIENCE[self.stack]
        while True:
            left = end - time.monotonic()
            try:
                line = lines.get(timeout=max(0.0, min(left, patience)))
            except queue.Empty:
                if left <= patience:
                    raise TimeIsUp from None
                return f"It took longer than {patience:.0f} s"
            if line is None:
                return ""
            self.read(**json.loads(line))

    def read(
        self,
        about: dict[str, Any] | None = None,
        compiling: str = "",
        compiled: str = "",
        measuring: str = "",
        name: str = "",
        row: Row | None = None,
    ) -> None:
        """Handles a line of `benchmarks.device.worker`.

        Raises:
          UsageError: The device is a CPU, or not that of earlier calls.
        """
        if about:
            self.results.about(self.stack, about, self.tiny)
            self.device = True
        if compiling or measuring:
            self.in_flight.append(compiling or measuring)
        if compiled:
            self.in_flight.remove(compiled)
        if row is not None:
            self.in_flight.remove(name)
            self.add(name, row)

    def add(self, name: str, row: Row) -> None:
        """Adds a row and prints it."""
        self.reported.add(name)
        self.results.add(name, row)
        print(f"{name}: {brief(row)}", flush=True)


def brief(row: Row) -> str:
    """Summarises a row in a few words."""
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
    try:
        code = process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        return "The process did not end"
    if code < 0:
        return f"The process was ended by {signal.Signals(-code).name}"
    return f"The process ended with exit code {code}" if code else ""


def _last_line(log: Path) -> str:
    """Reads the last line that a process logged; '' if there is none."""
    lines = log.read_text(errors="replace").splitlines()[-50:] if log.exists() else []
    return next((line.strip()[-300:] for line in reversed(lines) if line.strip()), "")
