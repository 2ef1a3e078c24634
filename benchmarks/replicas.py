"""Several seeds trained together in one program (`train.replicas`), compared with the same seeds one after the other.

    python -m benchmarks.replicas --replicas=5 --rounds=7 --steps=200 --out=benchmarks/results/replicas_cpu.json

Steps are timed in one process, in turn, round by round. Whole runs are processes of `python -m train.main`, timed from
start to end with compilation; at first the cache of compiled programs is empty.
"""

import argparse
import dataclasses
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import jax

from analysis import measurements
from analysis.tables import plain_markdown
from benchmarks import measure
from train import cli, loading
from train.config.schema import Config
from train.mesh import feeds, sharding
from train.mesh.replicas import Replicas
from train.setup import Setup

CONFIGS = ("configs/vit_digits.py", "configs/gpt_pydoc.py")


@measurements.program(
    __doc__,
    cli.flag("--configs", nargs="*", default=CONFIGS, help="config files"),
    cli.flag("--replicas", type=cli.count, default=5, help="seeds trained together"),
    cli.flag("--rounds", type=cli.count, default=7, help="rounds of timing steps"),
    cli.flag("--steps", type=int, default=200, help="steps of each whole run; 0 for no whole runs"),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of all configs."""
    result: dict[str, Any] = {"replicas": flags.replicas, "configs": {}}
    for spec in flags.configs:
        config, _ = loading.resolve(spec, flags.overrides)
        measured = {"step": steady(config, flags.replicas, flags.rounds)}
        if flags.steps:
            measured["run"] = whole(spec, flags.overrides, flags.replicas, flags.steps)
        result["configs"][spec] = measured
    yield result, markdown(result)


def steady(config: Config, count: int, rounds: int) -> dict[str, Any]:
    """Measures seconds of a step of all seeds together, and of a step of each in turn, with their ratio by round."""
    mesh, rate = sharding.make_mesh(config.mesh), config.optimizer.learning_rate
    with jax.set_mesh(mesh):
        steps = {
            "together": _step(config, [Replicas(range(config.seed, config.seed + count), mesh, [rate])]),
            "apart": _step(config, [Replicas([config.seed + number], mesh, [rate]) for number in range(count)]),
        }
        times = measure.in_turn(steps, rounds, budget=float("inf"))
    return {"seconds": measure.medians(times), "together_over_apart": measure.ratio(times, "together", "apart")}


def _step(config: Config, contestants: list[Replicas]) -> Callable[[], Any]:
    """Makes a call that takes a step of each contestant with the first one's program; the others' take as long."""
    setup = dataclasses.replace(Setup.of(config), replicas=contestants[0])
    with feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed:
        rows, _ = feed.take(0, 1)
        program = setup.program(feed)
        states = [setup.fresh(lambda params: (params, ""))[0] for _ in contestants]
        program.compile(states[0], rows)

    def step() -> Any:
        for number, state in enumerate(states):
            states[number], _ = program(state, rows, 1)
        return states

    return step


def whole(spec: str, overrides: dict[str, str], count: int, steps: int) -> dict[str, Any]:
    """Measures the seconds of a process that trains all seeds together, and of processes that train one seed each."""
    flags = [f"--config={spec}", *(f"--config.{field}={text}" for field, text in overrides.items())]
    flags.append(f"--config.train.length={steps} steps")
    together = _seconds([[*flags, f"--config.train.replicas={count}"]])
    apart = _seconds([[*flags, f"--config.seed={seed}"] for seed in range(count)])
    return {"steps": steps, "seconds": {"together": together, "apart": apart}, "together_over_apart": together / apart}


def _seconds(programs: list[list[str]]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": f"{folder}/compiled"}
        commands = (["-m", "train.main", *flags, f"--workdir={folder}/{i}"] for i, flags in enumerate(programs))
        return sum(measure.seconds_of_process(command, environment) for command in commands)


def markdown(result: dict[str, Any]) -> str:
    """Tabulates the results."""
    count, rows = result["replicas"], []
    for spec, measured in result["configs"].items():
        seconds, spread = measured["step"]["seconds"], measure.spread(measured["step"]["together_over_apart"])
        row = [f"`{spec}`, a step", *(f"{1000 * seconds[name]:.1f} ms" for name in ("together", "apart")), spread]
        rows.append(row)
        if "run" in measured:
            run = measured["run"]
            times = [f"{run['seconds'][name]:.0f} s" for name in ("together", "apart")]
            rows.append([f"`{spec}`, a run of {run['steps']} steps", *times, f"{run['together_over_apart']:.2f}"])
    return plain_markdown(["", f"{count} together", f"{count} apart", "together / apart"], rows)


if __name__ == "__main__":
    sys.exit(main())
