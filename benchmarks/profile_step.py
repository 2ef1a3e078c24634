"""The time of a training step by kind of operation, from XLA's trace.

    taskset -c 0 python -m benchmarks.profile_step --config=configs/vit_cifar100.py --config.data.data_dir=DIR

Run it on one core, so that the durations of operations add up to the step's.
"""

import argparse
import collections
import functools
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from analysis.tables import plain_markdown
from train import cli, loading, tasks
from train.optimizer import Rates
from train.step import Step, step_key

ATTENTION = "attention, "
LOOPS = re.compile(r"^(while|call)")
COMPUTATION = re.compile(r"\n%([\w.\-]+) \(.*?\n}\n", re.DOTALL)
INSTRUCTION = re.compile(r"%([\w.\-]+) = .*")


@cli.program(
    __doc__,
    cli.flag("--config", default="configs/vit_digits.py", metavar="FILE[:ARGUMENT]", help="the model"),
    cli.flag("--steps", type=cli.count, default=3, help="number of traced steps"),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> None:
    """Compiles the step, traces it and prints a table."""
    config, _ = loading.resolve(flags.config, flags.overrides)
    compiled, state, batch = _compile(config)
    table = by_kind(compiled.as_text(), durations(compiled, state, batch, flags.steps))
    total = sum(table.values())
    rows = [(kind, f"{spent:.0f}", f"{spent / total:.1%}") for kind, spent in table.most_common()]
    temporaries = f"temporaries {compiled.memory_analysis().temp_size_in_bytes / 2**20:.0f} MiB"
    print(plain_markdown(("kind of operation", "ms", "share"), [*rows, ("all", f"{total:.0f}", temporaries)]))


def _compile(config: Any) -> tuple[Any, Any, Any]:
    task = tasks.of(config)
    one = Step.of(config, task.loss)
    state = one.init(jax.jit(task.init)(jax.random.key(0)))
    batch = next(task.train_batches(0, 1))
    rates = Rates(jnp.float32(config.optimizer.learning_rate), jnp.int32(0), jnp.int32(1))
    step = functools.partial(one, key=step_key(config.seed), rates=rates)
    return jax.jit(step, donate_argnames="state").lower(state, batch).compile(), state, batch


def durations(compiled: Any, state: Any, batch: Any, steps: int) -> dict[str, float]:
    """Measures the milliseconds that each instruction of the compiled program takes in a step."""
    state, _ = compiled(state, batch)
    milliseconds: dict[str, float] = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(steps):
                state, _ = jax.block_until_ready(compiled(state, batch))
        (path,) = Path(folder).rglob("*.xplane.pb")
        trace = jax.profiler.ProfileData.from_file(str(path))
        events = (event for plane in trace.planes for line in plane.lines for event in line.events)
        for event in events:
            if "hlo_op" in dict(event.stats) and not LOOPS.match(event.name):
                milliseconds[event.name] += event.duration_ns / steps / 1e6
    return milliseconds


def by_kind(program: str, times: dict[str, float]) -> collections.Counter[str]:
    """Adds up the durations by kind of operation."""
    lines = {match[1]: match[0] for match in INSTRUCTION.finditer(program)}
    bodies = {match[1]: match[0] for match in COMPUTATION.finditer(program)}
    table: collections.Counter[str] = collections.Counter()
    for name, milliseconds in times.items():
        line = lines.get(name, "")
        called = re.search(r"calls=%([\w.\-]+)", line)
        table[_kind(line, bodies.get(called[1], "") if called else line)] += milliseconds
    return table


def _kind(line: str, body: str) -> str:
    """Classifies an instruction by its place in the program and the operations fused into it."""
    name = (re.search(r'op_name="([^"]*)"', line) or ["", ""])[1]
    inside, direction = "while" in name, "backward" if "transpose(jvp" in name else "forward"
    if " dot(" in body:
        return f"{'attention' if inside else 'dense'} products, {direction}"
    if inside:
        return ATTENTION + ("exponentials" if "exponential(" in body else "masks, sums, slices")
    if " erf(" in body:
        return "GELU with what is fused into it"
    if "shift-right" in body:
        return "dropout with what is fused into it"
    if "reduce(" in body:
        return "reductions: LayerNorm, bias gradients"
    return "the rest: residuals, biases, copies, optimizer"


if __name__ == "__main__":
    sys.exit(main())
