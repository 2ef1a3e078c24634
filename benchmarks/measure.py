"""Measuring: programs are compiled once and timed in turn, in rounds; memory is what XLA plans."""

import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from attention.errors import UsageError
from train import cli
from train.run import workdir

ROOT = Path(__file__).parent.parent  # the checkout, in which programs are started
SHORTEST = 0.02  # seconds; shorter calls are repeated within a round
SHORT = 1.0  # seconds; shorter calls run once, uncounted, before they are timed

PRECISION = cli.flag("--precision", default="float32", choices=("float32", "bfloat16"), help="precision of computing")


def rounds(default: int) -> Callable[[cli.Parser], Any]:
    """Declares the flag `--rounds`."""
    return cli.flag("--rounds", type=cli.count, default=default, help="number of rounds, in which all take turns")


def with_versions(packages: Iterable[str], file: str) -> dict[str, Any]:
    """Collects versions for a result, including those of packages that only benchmarks need.

    Raises:
      UsageError: A package is not installed; the requirements in `file` add it.
    """
    try:
        return {"versions": workdir.environment()["versions"] | {name: metadata.version(name) for name in packages}}
    except metadata.PackageNotFoundError as error:
        raise UsageError(f"{error.name} is not installed: pip install -r {file} -c constraints.txt.") from error


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled computation with its arguments.

    Attributes:
      call: Runs the computation once and returns its result without waiting for it.
      temp: Bytes of XLA's temporary buffers; None for programs of other libraries.
      peak: Bytes that XLA plans for arguments, results and temporary buffers together.
    """

    call: Callable[[], Any]
    temp: int | None
    peak: int

    @classmethod
    def of(cls, function: Callable, *arguments: Any) -> "Program":
        """Compiles a function for its arguments."""
        compiled = jax.jit(function).lower(*arguments).compile()
        memory = compiled.memory_analysis()
        whole = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
        return cls(lambda: compiled(*arguments), memory.temp_size_in_bytes, whole)


Times = dict[str, list[float]]
Ratio = dict[str, float]  # median, least and greatest of the rounds


def in_turn(calls: Mapping[str, Callable[[], Any]], rounds: int, budget: float) -> Times:
    """Times each call in each round, in seconds; calls take turns, so that drift of the machine affects all.

    A short call runs once more, uncounted, before it is timed, since memory that another call just freed slows it.

    Args:
      budget: Seconds after which a call takes part in no further round; each takes part in at least three.
    """
    repeats = {name: _repeats(call) for name, call in calls.items()}
    times: Times = {name: [] for name in calls}
    for number in range(rounds):
        for name, call in calls.items():
            if number < 3 or sum(times[name]) * repeats[name] < budget:
                if not times[name] or times[name][-1] < SHORT:
                    jax.block_until_ready(call())
                times[name].append(seconds(call, repeats[name]))
    return times


def medians(times: Times) -> dict[str, float]:
    """Computes the median seconds of each call."""
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def ratio(times: Times, name: str, baseline: str) -> Ratio | None:
    """Computes the ratio of seconds, round by round; None if one of the two has no times."""
    pairs = list(zip(times.get(name, ()), times.get(baseline, ()), strict=False))
    if not pairs:
        return None
    ratios = [seconds / baseline_seconds for seconds, baseline_seconds in pairs]
    return {"median": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios)}


def _repeats(call: Callable[[], Any]) -> int:
    """Chooses how often a call is repeated within a round; if its first run is short, by its second one."""
    first = seconds(call)
    return 1 if first > SHORTEST else max(1, round(SHORTEST / seconds(call)))


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Times a call in seconds, as the mean of consecutive repeats."""
    started = time.perf_counter()
    for _ in range(repeats):
        out = call()
    jax.block_until_ready(out)
    return (time.perf_counter() - started) / repeats


def seconds_of_process(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Times a new Python process in the checkout from start to end, in seconds."""
    command = [sys.executable, *arguments]
    return seconds(lambda: subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL))


def bytes_of(tree: Any) -> int:
    """Counts the bytes of a tree's arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


@dataclasses.dataclass(frozen=True)
class Roof:
    """The measured limits of the device: products of matrices, and reading with writing.

    Attributes:
      flops: Floating-point operations per second.
      bandwidth: Bytes per second.
    """

    flops: float
    bandwidth: float

    @classmethod
    def measured(cls, dtype: Any) -> "Roof":
        """Measures the product of two large square matrices, and the addition of 1 to a large array."""
        big = jax.default_backend() != "cpu"
        side, length = (8192, 2**28) if big else (2048, 2**26)
        matrix = jnp.ones((side, side), dtype)
        product = Program.of(lambda x: x @ x, matrix)
        add = jax.jit(lambda x: x + 1, donate_argnums=0)  # in place, since a new array would cost page faults
        vector = jnp.ones(length, dtype)

        def step():
            nonlocal vector
            vector = add(vector)
            return vector

        fastest = [min(seconds(call) for _ in range(6)) for call in (product.call, step)]
        return cls(2 * side**3 / fastest[0], 2 * length * jnp.dtype(dtype).itemsize / fastest[1])

    def seconds(self, flops: float, bytes_: float) -> float:
        """Computes the least time for this work."""
        return max(flops / self.flops, bytes_ / self.bandwidth)

    def of_step(self, seconds: float, weights: int, tokens: int) -> dict[str, float]:
        """Computes the figures of a decoding step that reads float32 weights, in bytes, for a number of tokens."""
        return {
            "milliseconds_a_step": 1e3 * seconds,
            "weight_bytes_a_step": weights,
            "gigabytes_per_second": weights / seconds / 1e9,
            "of_bandwidth": weights / seconds / self.bandwidth,
            "of_flops": 2 * tokens * weights / 4 / seconds / self.flops,
        }


def spread(ratio: Ratio | None) -> str:
    """Writes the median of ratios, with the least and the greatest; '' without ratios."""
    return f"{ratio['median']:.2f} ({ratio['least']:.2f} – {ratio['greatest']:.2f})" if ratio else ""
