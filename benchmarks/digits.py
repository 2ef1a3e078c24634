"""Every mechanism in the digits ViT, trained with `python -m train.main`, as a table with mean and spread over seeds.

    python -m benchmarks.digits --runs=runs/digits

trains what has no result yet, a process for each CPU at a time, writes `benchmarks/results/digits_cpu.json` and the
table in `docs/mechanisms.md`. Stopped at any moment, it goes on where it was.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from models.mechanisms import MECHANISMS

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "benchmarks/results/digits_cpu.json"
DOCS = ROOT / "docs/mechanisms.md"
START, END = "<!-- digits: made by benchmarks/digits.py -->", "<!-- end of digits -->"
# Beside the rows of the table: what the papers used, or what design choices are worth a look.
VARIANTS = ("neural(dim=16)", "neural(dim=None)", "gaussian(sigma=0.05)", "linear(feature='identity', normalise=False)")


def main() -> None:
    """Trains, then writes both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/digits"), help="where the work directories are")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[*MECHANISMS, *VARIANTS], help="spec strings")
    arguments = parser.parse_args()
    todo = [(spec, seed) for seed in range(arguments.seeds) for spec in arguments.only]
    train_all(todo, arguments.runs)
    done = {spec: results(spec, arguments.runs) for spec in [*MECHANISMS, *VARIANTS]}
    write({spec: found for spec, found in done.items() if found})


def train_all(todo: Sequence[tuple[str, int]], runs: Path) -> None:
    """One process on each CPU, so that none waits for another's threads."""
    cpus: SimpleQueue[int] = SimpleQueue()
    for cpu in sorted(os.sched_getaffinity(0)):
        cpus.put(cpu)

    def one(task: tuple[str, int]) -> None:
        cpu = cpus.get()
        try:
            train(*task, runs, cpu)
        finally:
            cpus.put(cpu)

    with ThreadPoolExecutor(cpus.qsize()) as pool:
        list(pool.map(one, todo))


def folder(spec: str, seed: int, runs: Path) -> Path:
    """The work directory of one run."""
    name = "".join(c if c.isalnum() or c in "_.=" else "-" for c in spec)
    return runs / f"{name}-{seed}"


def train(spec: str, seed: int, runs: Path, cpu: int) -> None:
    """Runs the command line unless its result is there; says what came of it."""
    workdir = folder(spec, seed, runs)
    if not (workdir / "result.json").exists():
        workdir.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "train.main", f"--config.model.attention={spec}", f"--config.seed={seed}"]
        command += [f"--workdir={workdir.resolve()}"]
        with Path(f"{workdir}.log").open("w") as log:
            pin = lambda: os.sched_setaffinity(0, {cpu})  # noqa: E731
            code = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, preexec_fn=pin).returncode
        if code:
            print(f"{spec}, seed {seed}: failed, see {workdir}.log", flush=True)
            return
    accuracy = json.loads((workdir / "result.json").read_text())["best"]["test"]["accuracy"]
    print(f"{spec}, seed {seed}: {100 * accuracy:.2f} %", flush=True)


def results(spec: str, runs: Path) -> list[dict[str, Any]]:
    """What each finished seed of one mechanism reached."""
    found = []
    for seed in range(100):
        path = folder(spec, seed, runs) / "result.json"
        if path.exists():
            found.append({"seed": seed} | json.loads(path.read_text()))
    return found


def write(done: dict[str, list[dict[str, Any]]]) -> None:
    """The JSON with all figures, and the table between the marks in the docs."""
    some = next(iter(done.values()))[0]
    kept = ("seed", "best", "best_step", "steps", "parameters", "git")
    record = {
        "command": "python -m benchmarks.digits",
        "each": "python -m train.main --config.model.attention=SPEC --config.seed=SEED, one CPU a run",
        "versions": some["versions"],
        "devices": some["devices"],
        "runs": {spec: [{key: run[key] for key in kept} for run in found] for spec, found in done.items()},
    }
    RESULT.write_text(json.dumps(record, indent=2) + "\n")
    text = DOCS.read_text()
    before, after = text.split(START)[0], text.split(END)[1]
    DOCS.write_text(f"{before}{START}\n\n{table(done)}\n\n{END}{after}")


def table(done: dict[str, list[dict[str, Any]]]) -> str:
    """Markdown: test accuracy at the best validation step, mean and range over seeds, parameters."""
    lines = ["| mechanism | test accuracy, % | lowest – highest | seeds | parameters |", "| --- " * 5 + "|"]
    for spec, found in done.items():
        accuracies = [100 * run["best"]["test"]["accuracy"] for run in found]
        spread = f"{min(accuracies):.2f} – {max(accuracies):.2f}"
        mean = statistics.mean(accuracies)
        lines.append(f"| `{spec}` | {mean:.2f} | {spread} | {len(found)} | {found[0]['parameters']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
