"""Seconds from a command to the end of its first training step, with an empty and with a full compilation cache.

    python -m benchmarks.startup --out=benchmarks/results/startup_cpu.json

Each time is that of a new process: the first has an empty cache folder, the second uses what the first left there.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure

CONFIGS = ("vit_digits", "gpt_pydoc")
# A run that exits at the end of its first step.
FIRST_STEP = """
import os, sys
from train import main
from train.run.training import TrainingRun
def stop(run, before, count, reported, *rest):
    os._exit(0)
TrainingRun._account = stop
sys.exit(main.main(sys.argv[1:]) or 1)
"""


@measurements.program(__doc__, measure.rounds(3))
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the seconds of each config."""
    by_config = {name: seconds(name, flags.rounds) for name in CONFIGS}
    yield {"seconds": by_config}, table(by_config)


def seconds(name: str, rounds: int) -> dict[str, list[float]]:
    """Times rounds with a cold and a warm cache, in seconds; text is tokenised before the first round."""
    by_cache: dict[str, list[float]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as folder:
        texts = f"--config.data.cache_dir={folder}/texts"
        first_step(name, Path(folder) / "unmeasured", texts)
        for number in range(rounds):
            for times in by_cache.values():
                times.append(first_step(name, Path(folder) / str(number), texts))
    return by_cache


def first_step(name: str, cache: Path, texts: str) -> float:
    """Times the first step of a new process that keeps its compiled programs in a folder, in seconds."""
    removed = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    environment = {k: v for k, v in os.environ.items() if k not in removed} | {"ATTENTION_BENCH_CACHE": str(cache)}
    flags = [
        f"--config=configs/{name}.py",
        "--config.train.log_every=1 step",
        *([texts] if name != "vit_digits" else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        return measure.seconds_of_process(["-c", FIRST_STEP, *flags, f"--workdir={folder}/run"], environment)


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """Tabulates the medians."""
    lines = []
    for name, times in found.items():
        cold, warm = (statistics.median(times[which]) for which in ("cold", "warm"))
        lines.append([f"`{name}`", f"{cold:.1f}", f"{warm:.1f}", f"{warm / cold:.2f}"])
    return plain_markdown(("config", "cold", "warm", "warm / cold"), lines)


if __name__ == "__main__":
    sys.exit(main())
