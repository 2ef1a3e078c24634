"""Speed of the loop around a step, with the reasons why the device waits, and of decoding here and in transformers.

The loop trains Super Attention's ViT on random images, without evaluation and checkpoints. It is traced twice: first as
it is, to see how long the device works and at what; then with Python's calls, which slow it but name what the host does
in the gaps between kernels. Decoding is greedy, with the Llama of `benchmarks.llama` and all weights in bfloat16.
"""

import collections
import functools
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import llama, measure
from benchmarks.device import about, timing
from benchmarks.device.items import Item, Row, need
from benchmarks.device.models import BENCH, COMPILED, EAGER, LLAMA, SMALL
from benchmarks.device.timing import Event
from benchmarks.train_step import SilentTraining, silent_training, training_against_step
from models.gpt import GPT
from train import loading
from train.config.schema import Config
from train.dry_run.dry import blank_task

LOOP = "configs/vit_cifar100_super.py"
CLASSES, SIDE = 100, 32
MARK = "steps that are traced"  # the event that marks the host's thread that launches
UNNAMED = ("$builtins ", "$<unknown> ")  # calls too small to tell anything
NOTHING, LONGEST = "nothing traced", 10
STACKS = {"transformers": EAGER, "transformers compiled": COMPILED}
CALLS = 5  # timed calls of each decoding


def items(tiny: bool) -> list[Item]:
    """Lists the loop with small and large batches, and decoding here and in transformers."""
    named = [("loop, vit_cifar100_super", "jax", prepare_loop, batch) for batch in ((8,) if tiny else (32, 256))]
    batches = (1, 2) if tiny else (1, 16)
    named += [("decoding, llama", "jax", prepare_decoding, batch) for batch in batches]
    for name in STACKS:
        prepare = functools.partial(prepare_transformers, name)
        named += [(f"decoding, llama, {name}", "torch", prepare, batch) for batch in batches]
    return [
        Item(f"models, {name}, batch {batch}", "models", stack, functools.partial(prepare, batch, tiny))
        for name, stack, prepare, batch in named
    ]


def prepare_loop(batch: int, tiny: bool) -> Callable[[], Row]:
    """Opens the training, which compiles and keeps its programs, and makes a function that opens and measures it."""
    with tempfile.TemporaryDirectory() as folder, silent_training(looped(Path(folder), batch, tiny)):
        pass
    steps, traced, rounds = (4, 4, 2) if tiny else (100, 20, 3)

    def measured() -> Row:
        with (
            tempfile.TemporaryDirectory() as folder,
            silent_training(looped(Path(folder), batch, tiny)) as training,
        ):
            found = training_against_step(training, rounds, steps)
            row = {f"{name}_seconds": seconds for name, seconds in found["seconds"].items()}
            row |= {"loop_over_step": found["loop_over_step"], "batch": batch, "unit": "images", "method": timing.CLOCK}
            row |= {"units_per_second": batch / row["loop_seconds"], "by": BENCH} | about.made_by("auto")
            return row | work_and_waits(training, traced)

    return measured


def looped(folder: Path, batch: int, tiny: bool) -> Config:
    """Makes the config of a training on as many random images as CIFAR-100 has, and writes these to a folder."""
    draw, pack = np.random.default_rng(0), folder / "images.npz"
    arrays = {}
    for split, number in {"train": 50_000, "test": 10_000}.items():
        number = CLASSES if tiny else number
        arrays[f"{split}_image"] = draw.integers(0, 256, (number, SIDE, SIDE, 3), np.uint8)
        arrays[f"{split}_label"] = np.arange(number) % CLASSES
    np.savez(pack, **arrays)
    sizes = {"data.source": f"numpy:{pack}", "data.batch_size": str(batch), "train.precision": "bfloat16"}
    return loading.resolve(LOOP, sizes | (SMALL | {"model.patch": "8"} if tiny else {}))[0]


class Running(NamedTuple):
    """A span of a thread's time in which the same calls run.

    Attributes:
      start: Start in nanoseconds.
      end: End in nanoseconds.
      names: The calls, the outermost first.
    """

    start: float
    end: float
    names: tuple[str, ...]


def work_and_waits(training: SilentTraining, steps: int) -> Row:
    """Traces steps of a loop twice: what the device does, and what the host does while the device is idle.

    The row is empty on a CPU, whose traces have no kernels.
    """
    kernels, _ = _steps(training, steps, python=False)
    if not kernels:
        return {}
    worked = work(kernels, steps)
    kernels, thread = _steps(training, steps, python=True)
    return worked | waits(kernels, thread, steps)


def _steps(training: SilentTraining, steps: int, python: bool) -> tuple[list[tuple[str, Event]], list[Running]]:
    """Traces the kernels that steps launch, with their names, and what ran on the thread that launched them."""
    with timing.traced(python) as traces, jax.profiler.TraceAnnotation(MARK):
        training.take(steps)
    kernels = [(event.name, (event.start_ns, event.duration_ns)) for event in timing.launched(traces[0])]
    return kernels, list(running(launching(traces[0])))


def work(kernels: Sequence[tuple[str, Event]], steps: int) -> Row:
    """Computes the share of time in which the device is busy, and the longest kernels, in seconds per step."""
    times = [event for _, event in kernels]
    span = max(start + duration for start, duration in times) - min(start for start, _ in times)
    total: collections.Counter[str] = collections.Counter()
    for name, (_, duration) in kernels:
        total[name] += duration / steps / 1e9
    busy = timing.busy(times)
    figures = {"busy": busy / (span / 1e9), "device_seconds": busy / steps, "launches": len(kernels) / steps}
    return figures | {"kernels": dict(total.most_common(LONGEST))}


def waits(kernels: Sequence[tuple[str, Event]], thread: Iterable[Running], steps: int) -> Row:
    """Adds up what the host runs in the gaps between kernels, in seconds per step, by innermost and by loop's call.

    The loop's calls are those below the method that takes steps, which is below the mark.
    """
    before = in_gaps([event for _, event in kernels])
    inner: collections.Counter[str] = collections.Counter()
    outer: collections.Counter[str] = collections.Counter()
    for part in thread:
        if spent := (before(part.end) - before(part.start)) / steps / 1e9:
            inner[part.names[-1]] += spent
            below = part.names[part.names.index(MARK) :] if MARK in part.names else part.names[-1:]
            outer[below[min(2, len(below) - 1)]] += spent
    whole = before(float("inf")) / steps / 1e9
    if (rest := whole - inner.total()) > 1e-9:
        inner[NOTHING] = outer[NOTHING] = rest
    return {
        "gap_seconds": whole,
        "gaps_by_innermost": dict(inner.most_common(LONGEST)),
        "gaps_by_loop": dict(outer.most_common(LONGEST)),
    }


def in_gaps(kernels: Sequence[Event]) -> Callable[[float], float]:
    """Makes a function that counts the idle nanoseconds between the first kernel's start and a time."""
    ordered = sorted(kernels)
    times, sums, end = [0.0], [0.0], ordered[0][0]
    for start, duration in ordered:
        if start > end:
            times += [end, start]
            sums += [sums[-1], sums[-1] + start - end]
        end = max(end, start + duration)
    return lambda time: float(np.interp(time, times, sums))


def launching(trace: Any) -> list[Any]:
    """Finds the events of the host's thread with the mark, without calls that tell nothing."""
    lines = (line for plane in trace.planes if plane.name.startswith("/host:") for line in plane.lines)
    threads = (list(line.events) for line in lines)
    found = next((events for events in threads if any(event.name == MARK for event in events)), [])
    return [event for event in found if not event.name.startswith(UNNAMED)]


def running(events: Sequence[Any]) -> Iterator[Running]:
    """Cuts a thread's time where its nested events start and end, and yields the spans within events."""
    calls: list[tuple[float, str]] = []  # ends and names of running calls, the innermost last
    now = float("-inf")

    def until(time: float) -> Iterator[Running]:
        nonlocal now
        if calls and time > now:
            yield Running(now, time, tuple(name for _, name in calls))
        now = max(now, time)

    for event in sorted(events, key=lambda event: (event.start_ns, -event.duration_ns)):
        while calls and calls[-1][0] <= event.start_ns:
            yield from until(calls[-1][0])
            calls.pop()
        yield from until(event.start_ns)
        calls.append((event.start_ns + event.duration_ns, event.name))
    while calls:
        yield from until(calls[-1][0])
        calls.pop()


def prepare_decoding(batch: int, tiny: bool) -> Callable[[], Row]:
    """Decodes once, which compiles, and makes a function that measures decoding."""
    model, params = drawn_llama(tiny)
    params = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    decode = llama.ours(model, params)
    decode(*asked(model, batch, tiny))
    of = {"by": BENCH, "weight_bytes": measure.bytes_of(params)} | about.made_by("auto")
    return lambda: of_decoding(decode, model, batch, tiny) | of


def prepare_transformers(name: str, batch: int, tiny: bool) -> Callable[[], Row]:
    """Draws the model, and makes a function that loads it into transformers, compiles, and measures decoding.

    The function does all of that in one thread, since PyTorch's CUDA graphs belong to the thread that makes them.
    """
    what = f"decoding in {name}"
    for package in ("torch", "transformers"):
        need(package, what)
    model, params = drawn_llama(tiny)

    def measured() -> Row:
        import torch

        from benchmarks.peers import llama_torch

        theirs = llama_torch.loaded(params, model, torch.bfloat16)
        theirs = theirs.to("cuda" if torch.cuda.is_available() else "cpu")
        decode = llama_torch.decoding_of(theirs, STACKS[name] == COMPILED)
        decode(*asked(model, batch, tiny))
        return of_decoding(decode, model, batch, tiny) | {"by": name}

    return measured


def drawn_llama(tiny: bool) -> tuple[GPT, dict]:
    """Makes the Llama of 100 M parameters, and draws its parameters."""
    task = blank_task(LLAMA.config(LLAMA.specs[0], 1, tiny))
    return task.model, jax.jit(task.init)(jax.random.key(0))


def asked(model: GPT, batch: int, tiny: bool) -> tuple[np.ndarray, int]:
    """Draws prompts, and chooses how many tokens follow them."""
    prompt, tokens = (3, 5) if tiny else (16, 128)
    return llama.tokens_of(model, batch, prompt), tokens


def of_decoding(decode: llama.Decode, model: GPT, batch: int, tiny: bool) -> Row:
    """Measures decoding by the host's clock, after an uncounted call."""
    prompts, tokens = asked(model, batch, tiny)
    call = functools.partial(decode, prompts, tokens)
    call()
    seconds = [measure.seconds(call) for _ in range(CALLS)]
    median = statistics.median(seconds)
    row = {"seconds": median, "least": min(seconds), "greatest": max(seconds), "calls": CALLS, "method": timing.CLOCK}
    return row | {"batch": batch, "unit": "tokens", "units_per_second": batch * tokens / median}
