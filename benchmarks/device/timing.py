"""The device's working time: sums of kernels by the profiler of JAX or of PyTorch, which both read CUPTI.

On a TPU the trace has whole programs in place of kernels. If a trace has neither, as on a CPU, the host's clock is read
instead, and the row says so.
"""

import contextlib
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax

from benchmarks.device.items import Row

Event = tuple[float, float]  # start and duration in nanoseconds
Call = Callable[[], Any]  # launches a call and returns its result, without waiting

LINKS = (60, 20)  # calls in a long and in a short chain
AT_LEAST, AT_MOST, ENOUGH = 3, 30, 0.2  # least and greatest number of calls, and seconds for all of them
DEVICE = re.compile(r"/device:(GPU|TPU):\d+")  # the names of planes
KERNELS, CLOCK = "sums of kernels", "the host's clock"


def measured(call: Call, stack: str) -> Row:
    """Measures a compiled call: median, least and greatest seconds of the device's work, and the method.

    Args:
      call: The call, which has not run yet.
      stack: `jax` or `torch`.
    """
    wait = WAITS[stack]
    wait(call())
    started = time.perf_counter()
    wait(call())
    once = time.perf_counter() - started
    number = max(AT_LEAST, min(AT_MOST, round(ENOUGH / max(once, 1e-6))))
    events: list[Event] = []
    with TRACES[stack](events):
        for _ in range(number):
            out = call()
        wait(out)
    seconds, method = split(events, number), KERNELS
    if not seconds:
        seconds, method = [_clocked(call, wait) for _ in range(AT_LEAST)], CLOCK
    return {
        "seconds": statistics.median(seconds),
        "least": min(seconds),
        "greatest": max(seconds),
        "calls": len(seconds),
        "method": method,
    }


def _clocked(call: Call, wait: Callable[[Any], None]) -> float:
    started = time.perf_counter()
    wait(call())
    return time.perf_counter() - started


def split(events: Sequence[Event], calls: int) -> list[float]:
    """Adds up the seconds in which the device worked, call by call; all calls launch the same number of kernels.

    If the kernels do not divide evenly among the calls, the result is only the mean of all calls.
    """
    events = sorted(events)
    if not events:
        return []
    if len(events) % calls:
        return [busy(events) / calls]
    each = len(events) // calls
    return [busy(events[start : start + each]) for start in range(0, len(events), each)]


def busy(events: Sequence[Event]) -> float:
    """Adds up the seconds in which at least one of the events was running."""
    total, end = 0.0, float("-inf")
    for start, duration in sorted(events):
        total += max(0.0, start + duration - max(start, end))
        end = max(end, start + duration)
    return total / 1e9


def slope(call: Callable[[Any], Any], first: Any, stack: str) -> float:
    """Times a call by the host's clock, in chains of calls that each take the result of the last one.

    The difference of a long and a short chain cancels the costs of launching and waiting.
    """

    def chain(length: int) -> float:
        started, x = time.perf_counter(), first
        for _ in range(length):
            x = call(x)
        WAITS[stack](x)
        return time.perf_counter() - started

    chain(2)
    long, short = (min(chain(length) for _ in range(3)) for length in LINKS)
    return (long - short) / (LINKS[0] - LINKS[1])


@contextlib.contextmanager
def of_jax(events: list[Event]) -> Iterator[None]:
    """Traces JAX, and adds the device's kernels, or a TPU's programs, to the list at the end."""
    with traced() as traces:
        yield
    events += kernels(traces[0])


@contextlib.contextmanager
def traced(python: bool = False) -> Iterator[list[Any]]:
    """Traces JAX, and adds the trace to the list at the end; `python` traces Python's calls too, which slows them."""
    options, traces = jax.profiler.ProfileOptions(), []
    options.python_tracer_level = int(python)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            yield traces
        (path,) = Path(folder).rglob("*.xplane.pb")
        traces.append(jax.profiler.ProfileData.from_file(str(path)))


def kernels(trace: Any) -> list[Event]:
    """Lists the times of what was launched on the device."""
    return [(event.start_ns, event.duration_ns) for event in launched(trace)]


def launched(trace: Any) -> list[Any]:
    """Finds a trace's programs on the first TPU, or its kernels and copies on the first GPU."""
    first = min((plane.name for plane in trace.planes if DEVICE.fullmatch(plane.name)), default="")
    lines = [line for plane in trace.planes if plane.name == first for line in plane.lines]
    programs = [line for line in lines if line.name == "XLA Modules"]
    streams = [line for line in lines if line.name.startswith("Stream")]
    return [event for line in programs or streams for event in line.events]


@contextlib.contextmanager
def of_torch(events: list[Event]) -> Iterator[None]:
    """Traces PyTorch, and adds the device's kernels to the list at the end."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if not torch.cuda.is_available():
        yield
        return
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as trace:
        yield
    events += on_device(trace.events(), torch.autograd.DeviceType.CUDA)


def on_device(events: Iterable[Any], device: Any) -> list[Event]:
    """Finds the kernels and copies among PyTorch's events, without the annotations around them."""
    found = (event for event in events if event.device_type == device and not event.is_user_annotation)
    return [(1e3 * x.time_range.start, 1e3 * (x.time_range.end - x.time_range.start)) for x in found]


def _wait_for_torch(_: Any) -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


TRACES = {"jax": of_jax, "torch": of_torch}
WAITS: dict[str, Callable[[Any], Any]] = {"jax": jax.block_until_ready, "torch": _wait_for_torch}
