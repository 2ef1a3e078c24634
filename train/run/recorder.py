"""The record of a run: lines of metrics in `metrics.jsonl` and other loggers, and their means on the screen."""

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from tqdm import tqdm

from attention.errors import UsageError, brief, unknown
from models.files import open_regular
from train.cli.terminal import coloured, filled
from train.config.schema import TRACKERS
from train.mesh import processes
from train.run.progress import Clock, duration_text, numbers_text
from train.run.results import Metrics
from train.setup import Setup

SILENCE = 60.0  # seconds without output after which a log gets a line of progress


class Record:
    """The file `metrics.jsonl` of a work directory: one JSON object a line, and each step of a split once.

    What was written after the `size` bytes that belong to the restored checkpoint is cut off, and so is an incomplete
    line. A shorter file is refused.
    """

    def __init__(self, workdir: Path, size: int):
        path = workdir / "metrics.jsonl"
        left = path.stat().st_size if path.exists() else 0
        if left < size:
            raise UsageError(
                f"{path} has {left} bytes, but the checkpoint counts {size}, so lines of the record are lost; put the "
                "file back as it was, or choose another --workdir."
            )
        if left:
            os.truncate(path, path.read_bytes()[:size].rfind(b"\n") + 1)
        self._file = open_regular(path, "a", encoding="utf-8")

    def write(self, line: dict[str, Any]) -> None:
        """Appends one object."""
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Flushes the file to disk, and returns its size in bytes."""
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # a line that could not be written has raised before
            self._file.close()


def set_aside(workdir: Path) -> list[str]:
    """Sets aside the record of a run that has no checkpoint to continue from, and returns remarks on it.

    Of several such records the longest is kept, since all have the same config and seed. A finished run is refused,
    since starting again would remove its result.
    """
    record, kept, result = (workdir / name for name in ("metrics.jsonl", "metrics.old.jsonl", "result.json"))
    if result.exists():
        raise UsageError(
            f"{workdir} holds a finished run whose checkpoints are gone, so it cannot continue; choose another "
            f"--workdir, or remove {result} to train it again."
        )
    if not record.is_file() or b"\n" not in record.read_bytes():
        return []
    if not kept.exists() or kept.stat().st_size < record.stat().st_size:
        record.replace(kept)
    return [f"There is a record but no checkpoint, so the run starts again; its former record is in {kept}."]


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """Names a line's numbers `split/name`, or `split/name/replica_2` if it is of one of several replicas."""
    replica = f"/replica_{line['replica']}" if "replica" in line else ""
    omitted = ("step", "split", "replica")
    return {f"{line['split']}/{name}{replica}": value for name, value in line.items() if name not in omitted}


class TensorBoard:
    """TensorBoard events of the same numbers, written synchronously, since tensorboardX's thread would lose errors.

    An earlier process's events after `step`, the restored one, are hidden.
    """

    def __init__(self, workdir: Path, step: int):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        folder = workdir / "tensorboard"
        folder.mkdir(exist_ok=True)
        self._events = EventsWriter(str(folder / "events"))
        self._add(step + 1, session_log=SessionLog(status=SessionLog.START))
        self._events.flush()

    def write(self, line: dict[str, Any]) -> None:
        """Adds all `numbers` of a line."""
        from tensorboardX.summary import scalar

        for name, value in numbers(line).items():
            self._add(line["step"], summary=scalar(name, value))
        self._events.flush()

    def close(self) -> None:
        """Closes the file."""
        with contextlib.suppress(OSError):  # as in `Record.close`
            self._events.close()

    def _add(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        self._events.write_event(Event(wall_time=time.time(), step=step, **content))


class Logger:
    """A logger that `train.loggers` names; only its first error is reported, and none ends the run.

    The name is one of `TRACKERS`, or `module:function`, which returns an object with `write(line)` and `close()`.
    """

    def __init__(self, name: str, directory: Path, config: Any, say: Callable[[str], None]):
        self._name, self._say, self._failed = name, say, False
        self._logger = _started(name, directory, config)

    def write(self, line: dict[str, Any]) -> None:
        """Passes on a line of `metrics.jsonl`: `step`, `split`, perhaps `replica`, and numbers by name."""
        self._attempt(self._logger.write, line)

    def close(self) -> None:
        """Ends the log."""
        self._attempt(self._logger.close)

    def _attempt(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception as error:
            if not self._failed:
                self._say(
                    f"The logger {self._name!r} failed ({type(error).__name__}: {brief(error)}); the run goes on, and "
                    "metrics.jsonl has all lines."
                )
            self._failed = True


def _started(name: str, directory: Path, config: Any) -> Any:
    """Imports and starts the logger of this name."""
    module, _, function = name.partition(":")
    remedy = f"pip install {module}" if name in TRACKERS else "put its folder into PYTHONPATH"
    try:
        found = importlib.import_module(module)
    except Exception as error:  # of any kind, since it is any program
        raise UsageError(
            f"train.loggers needs the module {module!r} ({type(error).__name__}: {brief(error)}): {remedy}, or leave "
            "it out."
        ) from error
    make = functools.partial(_tracked, found, name) if name in TRACKERS else getattr(found, function, None)
    if not callable(make):
        raise unknown(f"function of {module} in train.loggers", function, filter(str.isidentifier, vars(found)))
    try:
        logger = make(directory, dataclasses.asdict(config))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"train.loggers={name!r} cannot start ({type(error).__name__}: {brief(error)}); fix that (for wandb: "
            "`wandb login`, or WANDB_MODE=offline), or leave it out."
        ) from error
    if not all(callable(getattr(logger, method, None)) for method in ("write", "close")):
        raise UsageError(
            f"train.loggers={name!r} returns {logger!r}, which lacks a method write or close; return a logger, or "
            "leave it out."
        )
    return logger


def _tracked(module: Any, tracker: str, directory: Path, config: dict[str, Any]) -> Any:
    """Starts a run of Weights & Biases or Trackio in the project $WANDB_PROJECT or $TRACKIO_PROJECT.

    A run that continues continues its run there too.
    """
    project = os.environ.get(f"{tracker.upper()}_PROJECT", "attention-bench")
    kept = directory / f"{tracker}_id.txt"
    if not kept.exists():
        kept.write_text(secrets.token_hex(8), encoding="utf-8")
    identity, name = kept.read_text(encoding="utf-8"), directory.name
    own = {
        "wandb": {"name": name, "id": identity, "dir": str(directory)},
        "trackio": {"name": f"{name}-{identity}"},  # which identifies a run
    }
    run = module.init(project=project, config=config, resume="allow", **own[tracker])
    return SimpleNamespace(write=lambda line: run.log(numbers(line), step=line["step"]), close=run.finish)


class Recorder:
    """Writes a run's metrics to its files and to the screen, and counts its time; only the first process writes.

    A terminal gets a bar; a log gets a line when nothing else was printed for a minute. A run continues after `step`
    steps with the `progress` in a checkpoint, {} for a new run.

    Attributes:
      clock: The training's clock.
      rate: The name of the throughput in the record.
    """

    def __init__(self, directory: Path, setup: Setup, step: int, progress: dict[str, Any]):
        self._replicas, self._unit, self._total = setup.replicas, setup.task.unit, setup.timetable.total
        self.clock, self.rate = Clock(progress.get("clock")), f"{self._unit}_per_second"
        self._active, self._said = processes.is_first(), time.monotonic()
        self._compiles = False
        self._files: list[Record | TensorBoard | Logger] = []
        if self._active:
            self._files += [Record(directory, progress.get("record_size", 0)), TensorBoard(directory, step)]
            names = filter(None, setup.config.train.loggers.split(","))
            self._files += [Logger(name, directory, setup.config, self.say) for name in names]
        terminal = self._active and sys.stderr.isatty()
        self._bar = tqdm(
            total=self._total,
            initial=step,
            disable=not terminal,
            dynamic_ncols=True,
            bar_format="{n_fmt}/{total_fmt} {bar} {postfix}",
            colour="green" if terminal and coloured(sys.stderr) else None,
        )

    def write(self, split: str, step: int, metrics: Mapping[int, Metrics], speed: float, shown: bool = True) -> None:
        """Writes a line of metrics, seconds and throughput for each replica; if `shown`, their mean to the screen too.

        The metrics are keyed by the replica's number; the speed is in examples or tokens a second.
        """
        timing, several = {"seconds": self.clock.seconds, self.rate: speed}, bool(self._replicas.front)
        for replica, found in metrics.items():
            place = {"step": step, "split": split} | ({"replica": replica} if several else {})
            for file in self._files:
                file.write(place | found | timing)
        if shown and metrics:
            names = next(iter(metrics.values()))
            means = {name: float(np.mean([found[name] for found in metrics.values()])) for name in names}
            of = f", mean of {len(metrics)}" if several else ""
            self.say(f"step {step}/{self._total} {split}{of}: {numbers_text(means | {self.rate: speed})}")

    def say(self, *lines: str) -> None:
        """Prints lines above the bar, wrapped at `terminal.COLUMNS`."""
        for line in lines if self._active else ():
            self._bar.write(filled(line))
            sys.stdout.flush()
            self._said = time.monotonic()

    def compiling(self) -> None:
        """Says that the next step is compiled first, which may take minutes; a log says it once."""
        if not self._bar.disable:
            self._bar.set_postfix_str("compiling")
        elif not self._compiles:
            self.say("Compiling the training step")
        self._compiles = True

    def finish(self) -> None:
        """Closes the bar; later lines are printed below it."""
        self._bar.close()

    def advance(self, step: int, loss: float) -> None:
        """Shows how far the run has come."""
        left = duration_text((self._total - step) * self.clock.pace)
        text = f"loss {loss:.4f}, {self.clock.per_second:,.4g} {self._unit}/s, {left} left"
        if not self._bar.disable:
            self._bar.n = step
            self._bar.set_postfix_str(text)
        elif time.monotonic() - self._said > SILENCE:
            self.say(f"step {step}/{self._total}: {text}")

    def progress(self) -> dict[str, Any]:
        """Collects what a checkpoint keeps: the clock's values and the bytes of the record on disk."""
        return {"clock": self.clock.saved, "record_size": self._files[0].sync() if self._active else 0}

    def close(self) -> None:
        """Closes the bar and the files."""
        self.finish()
        for file in self._files:
            file.close()
