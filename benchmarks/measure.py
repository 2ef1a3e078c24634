"""How everything here is measured: compiled once, timed in turn round after round, memory as XLA planned it."""

import dataclasses
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from train import workdir

SHORTEST = 0.02  # seconds: what takes less is repeated within a round


def command(main: Callable[[], None]) -> None:
    """Runs a program; a mistake in its arguments becomes one sentence."""
    try:
        main()
    except UsageError as error:
        sys.exit(f"Error: {error}")


def header(module: str) -> dict[str, Any]:
    """The command, the machine and the versions, for a result's JSON."""
    command = " ".join([f"python -m benchmarks.{module}", *sys.argv[1:]])
    return {"command": command, "cpus": os.cpu_count(), "machine": platform.machine()} | workdir.environment()


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled computation with its arguments.

    Attributes:
      call: Runs it once; returns what it returns, not yet waited for.
      temp: Bytes of XLA's temporary buffers.
      peak: Bytes it needs at once, as XLA planned: arguments, results and temporaries.
    """

    call: Callable[[], Any]
    temp: int
    peak: int

    @classmethod
    def of(cls, function: Callable, *arguments: Any) -> "Program":
        """Compiles a function for its arguments."""
        compiled = jax.jit(function).lower(*arguments).compile()
        memory = compiled.memory_analysis()
        whole = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
        return cls(lambda: compiled(*arguments), memory.temp_size_in_bytes, whole)


@dataclasses.dataclass(frozen=True)
class Timing:
    """What the rounds gave.

    Attributes:
      seconds: Of one call, the median over rounds.
      ratio: To the baseline of the same round: median, least and greatest.
      rounds: How many.
    """

    seconds: float
    ratio: tuple[float, float, float]
    rounds: int


def paired(calls: Mapping[str, Callable[[], Any]], baseline: str, rounds: int, budget: float) -> dict[str, Timing]:
    """Times calls in turn, so that each is compared with what the machine gave the baseline just then.

    Args:
      calls: By name.
      baseline: Which of them the others are compared with.
      rounds: Of all.
      budget: Seconds after which a call takes part in no more rounds; the baseline always does.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            if name == baseline or sum(times[name]) * repeats[name] < budget:
                times[name].append(_seconds(call, repeats[name]))
    return {name: _timing(values, times[baseline]) for name, values in times.items()}


def _timing(values: list[float], base: list[float]) -> Timing:
    ratios = [value / other for value, other in zip(values, base, strict=False)]
    return Timing(statistics.median(values), (statistics.median(ratios), min(ratios), max(ratios)), len(values))


def _repeats(call: Callable[[], Any]) -> int:
    jax.block_until_ready(call())
    return max(1, round(SHORTEST / _seconds(call, 1)))


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - started) / repeats


@dataclasses.dataclass(frozen=True)
class Roof:
    """What the device can do at most, measured: products of matrices and reading with writing.

    Attributes:
      flops: A second.
      bandwidth: Bytes a second.
    """

    flops: float
    bandwidth: float

    @classmethod
    def measured(cls, dtype: Any) -> "Roof":
        """From a product of two large square matrices, and from adding 1 to a large array."""
        big = jax.default_backend() != "cpu"
        side, length = (8192, 2**28) if big else (2048, 2**26)
        matrix, vector = jnp.ones((side, side), dtype), jnp.ones(length, dtype)
        product, add = Program.of(lambda x: x @ x, matrix), Program.of(lambda x: x + 1, vector)
        fastest = [min(_seconds(p.call, 1) for _ in range(6)) for p in (product, add)]
        return cls(2 * side**3 / fastest[0], 2 * vector.nbytes / fastest[1])

    def seconds(self, flops: float, bytes_: float) -> float:
        """The least time that so much work can take."""
        return max(flops / self.flops, bytes_ / self.bandwidth)


def device_peak() -> int:
    """The most bytes this process has had on the device so far; 0 where the device does not say (CPUs)."""
    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)


def markdown(titles: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table."""
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)
