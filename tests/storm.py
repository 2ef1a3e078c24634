"""A storm of signals: a training is stopped again and again, and must end bit for bit as if nothing had happened.

python -m tests.storm --kills=20 --signal=KILL --processes=1 -- --config=configs/vit_digits.py --config.seed=1

A third of the signals fall within start-up, a third between two steps and a third inside the writing of a checkpoint;
which step and how long after is drawn from --seed.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

KINDS = ("write", "steps", "start")
PATIENCE = 300.0  # seconds that one start may take


@dataclasses.dataclass
class Storm:
    """A training and what hits it.

    Attributes:
      arguments: Of `train.main`, without --workdir.
      workdir: Where it trains.
      kills: How many signals.
      number: The signal.
      processes: Of the training.
      seed: Of the moments.
    """

    arguments: Sequence[str]
    workdir: Path
    kills: int
    number: signal.Signals
    processes: int = 1
    seed: int = 0

    def uninterrupted(self) -> float:
        """Trains from start to end; returns the seconds until the first step was written down."""
        started = time.monotonic()
        with self._training() as process:
            self._until(process, lambda: self._step() > 0)
            start = time.monotonic() - started
            code = process.wait(PATIENCE)
        assert code == 0, f"exit code {code}"
        return start

    def rage(self, start: float) -> list[str]:
        """Trains until it ends by itself; returns where each signal fell.

        Args:
          start: Seconds that a start takes.
        """
        draw, log = random.Random(self.seed), []
        total = self._total()
        steps = sorted(draw.randrange(1, total - 1) for _ in range(self.kills))
        for index, step in enumerate(steps):
            kind, starts = KINDS[index % len(KINDS)], self._starts()
            with self._training() as process:
                if kind == "start":
                    moment = time.monotonic() + draw.uniform(0, start)
                    self._until(process, lambda m=moment, n=starts: time.monotonic() > m or self._starts() > n)
                else:
                    self._until(process, lambda step=step, n=starts: self._starts() > n and self._step() >= step)
                if kind == "write":
                    self._until(process, self._writing, pause=0.001)
                time.sleep(draw.uniform(0, 0.02))
                assert process.poll() is None, f"it ended before signal {index + 1}, of step {step}"
                os.kill(self._victim(process, kind, draw), self.number)
                code = process.wait(PATIENCE)
            assert kind == "start" or self.number != signal.SIGTERM or code == 0, (
                f"exit code {code} after {kind}, {log}"
            )
            log.append(f"{kind}, step {self._step()}, exit code {code}" + (", half written" if self._writing() else ""))
        with self._training() as process:
            code = process.wait(PATIENCE)
        assert code == 0, f"exit code {code} after {log}"
        return log

    @contextlib.contextmanager
    def _training(self) -> Iterator[subprocess.Popen]:
        launch = ["train.launch", f"--processes={self.processes}", "--"] if self.processes > 1 else ["train.main"]
        command = [sys.executable, "-m", *launch, *self.arguments, f"--workdir={self.workdir}"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    def _victim(self, process: subprocess.Popen, kind: str, draw: random.Random) -> int:
        """The training, or one of its processes: the first, where it is to be interrupted in finishing a checkpoint."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if self.processes == 1 or len(children) < self.processes:
            return process.pid
        return int(children[0] if kind == "write" else draw.choice(children))

    def _until(self, process: subprocess.Popen, condition: Callable[[], bool], pause: float = 0.01) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert process.poll() is None, f"it ended with {process.returncode} before its moment"
            assert time.monotonic() < deadline, "nothing happens"
            time.sleep(pause)

    def _step(self) -> int:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return json.loads((self.workdir / "metrics.jsonl").read_text().splitlines()[-1])["step"]
        return 0

    def _starts(self) -> int:
        """How often the training came as far as its first step, having cut back the record and tidied up."""
        return len(list(self.workdir.glob("tensorboard/*")))

    def _writing(self) -> bool:
        return any(self.workdir.glob("checkpoints/*-tmp"))

    def _total(self) -> int:
        (length,) = [a.partition("=")[2] for a in self.arguments if a.startswith("--config.train.length=")]
        return int(length.removesuffix(" steps"))


def assert_same(one: Path, other: Path) -> None:
    """Two runs' last checkpoints, records and results are the same, but for the wall clock."""
    last = [max(int(path.name) for path in (run / "checkpoints").iterdir()) for run in (one, other)]
    assert last[0] == last[1]
    ours, theirs = (arrays(run / "checkpoints" / str(last[0])) for run in (one, other))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    records = [[json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()] for run in (one, other)]
    assert without_clock(records[0]) == without_clock(records[1])
    results = [json.loads((run / "result.json").read_text()) for run in (one, other)]
    assert without_clock(results[0]) == without_clock(results[1])


def arrays(checkpoint: Path) -> Any:
    """All that a checkpoint holds, read on one device without any of our code."""
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = ocp.metadata(checkpoint).metadata
    return ocp.load(
        checkpoint, jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=here), shapes)
    )


MEASURED = ("seconds", "_per_second", "seconds_per_epoch", "peak_memory_bytes", "git")


def without_clock(value):
    """JSON values without what is measured of the machine, or depends on a commit in the meantime."""
    if isinstance(value, list):
        return [without_clock(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: without_clock(v) for k, v in value.items() if not k.endswith(MEASURED)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM", "INT"])
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("arguments", nargs="*", help="of train.main, behind --; train.length in steps among them")
    flags = parser.parse_args()
    number = signal.Signals[f"SIG{flags.signal}"]
    with tempfile.TemporaryDirectory() as folder:
        whole, hit = Path(folder) / "whole", Path(folder) / "hit"
        storm = Storm(flags.arguments, hit, flags.kills, number, flags.processes, flags.seed)
        start = dataclasses.replace(storm, workdir=whole).uninterrupted()
        print(*storm.rage(start), sep="\n")
        assert_same(hit, whole)
    print(f"The same as without {flags.kills} signals, bit for bit.")


if __name__ == "__main__":
    main()
