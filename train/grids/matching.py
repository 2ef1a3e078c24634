"""Checks all configs of a sweep before it trains, and makes their models as large or as costly as the baseline's.

Checking a config opens its data and traces its model. `in_new_process` does so in another process, so that no
accelerator is held while the runs need it.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from fractions import Fraction
from multiprocessing import get_context
from typing import Any

import jax

from attention.errors import UsageError
from attention.types import Multiple
from models.fields import declared
from train import loading, tasks
from train.cli import OVERRIDE
from train.config import durations
from train.config.schema import Config
from train.mesh import memory
from train.setup import Setup
from train.state import count_parameters
from train.tasks import Task

TOLERANCE = 0.01
MOST = 64  # the most replicas of one program
STATES, BATCHES = 4, 64  # a replica's step needs about 4 times its state's and 64 times its batch's bytes
SHORT = 3e11  # operations of a run up to which, on a CPU, one start for all saves more than one program for all loses


@dataclasses.dataclass(frozen=True)
class Request:
    """A request for a config, as `loading.resolve` takes it."""

    name: str  # the setting's name in messages
    spec: str  # the config file, with or without an argument
    overrides: Mapping[str, str]  # from a leaf to the text of its value

    def but(self, changes: Mapping[str, str]) -> "Request":
        """Copies the request with some overrides changed."""
        return dataclasses.replace(self, overrides={**self.overrides, **changes})

    @property
    def flags(self) -> list[str]:
        """The flags of `train.main`."""
        return [f"--config={self.spec}", *(f"{OVERRIDE}{field}={text}" for field, text in self.overrides.items())]

    @property
    def config(self) -> Config:
        """The config."""
        return loading.resolve(self.spec, self.overrides)[0]

    def length(self, part: Fraction) -> str:
        """Writes a part or a multiple of the training's length."""
        length = durations.Duration.parse(self.config.train.length, "train.length")
        return f"{float(length.amount * part):.4f} {length.unit}"

    def setup(self) -> Setup:
        """Sets up a run; raises a UsageError where the run itself would."""
        try:
            return Setup.of(self.config)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}" if self.name else str(error)) from error


@dataclasses.dataclass(frozen=True)
class Prepared:
    """The result of `prepare`."""

    chosen: Mapping[str, Mapping[str, str]]  # by name, the overrides that make a setting equal to its baseline
    sizes: Mapping[str, int]  # by name, the parameters or operations with these overrides; 0 where nothing is matched
    seed: int  # the first setting's
    jobs: int  # the number of runs at a time that suits the devices; 0 is one for each CPU
    together: int  # how many runs that differ only in seed or learning rate one program may train


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new process, and waits until that has ended."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def examine(requests: Sequence[Request]) -> tuple[list[str], int, int]:
    """Checks every setting as a run does.

    Returns:
      The reason why each setting cannot be trained, '' where it can; and `jobs` and `together` of `Prepared`. On a CPU,
      runs are trained apart, since one on each core is faster than several in one program.
    """
    reasons, together = [], 1 if jax.default_backend() == "cpu" else MOST
    for request in requests:
        try:
            setup = request.setup()
            setup.check_memory()
            together = min(together, _together(setup, asked=False))
            reasons.append("")
        except UsageError as error:
            reasons.append(str(error).removeprefix(f"{request.name}: "))
    return reasons, _jobs(), together


def prepare(requests: Sequence[Request], baselines: Sequence[Request], equal: str, replicas: str) -> Prepared:
    """Checks every setting as a run does, and matches it with its baseline, which may be itself.

    Args:
      equal: What is matched, a name of `EQUAL`, or ''.
      replicas: Whether one program may train several runs: `yes`, `no`, or `auto`; see `_together`.
    """
    setups = {request.name: request.setup() for request in requests}
    chosen: dict[str, Mapping[str, str]] = {request.name: {} for request in requests}
    sizes = dict.fromkeys(chosen, 0)
    if equal:
        size = EQUAL[equal]
        for request, baseline in zip(requests, baselines, strict=True):
            if request != baseline:
                ours, wanted = size(setups[request.name]), size(setups[baseline.name])
                longer = {"train.length": request.length(Fraction(wanted, ours))}
                chosen[request.name] = longer if equal == "flops" else matched_parameters(request, wanted)
        setups = {request.name: request.but(chosen[request.name]).setup() for request in requests}
        sizes = {name: size(setup) for name, setup in setups.items()}
    together = 1 if replicas == "no" else min(_together(setup, replicas == "yes") for setup in setups.values())
    return Prepared(chosen, sizes, setups[requests[0].name].config.seed, _jobs(), together)


def _jobs() -> int:
    return 0 if jax.default_backend() == "cpu" else 1


def _together(setup: Setup, asked: bool) -> int:
    """Counts how many runs of a setting one program may train, so that their states and batches fit on a device.

    If the user has not asked for that, it is one where it is impossible, since batches cannot be stacked or seeds start
    from different runs, and where it is slow: a CPU trains long runs faster one on each core.
    """
    try:
        setup.task.check_stackable()
        setup.config.check_one_start()
    except UsageError:
        if asked:
            raise
        return 1
    config, mesh = setup.config, setup.replicas.mesh
    if not asked and jax.default_backend() == "cpu" and operations(setup) > SHORT:
        return 1
    batch = config.data.batch_size * setup.task.sources["train"].example_bytes
    one = STATES * memory.bytes_a_device(setup.replicas.abstract(setup.shapes)) + BATCHES * batch
    return max(1, min(MOST, memory.limit(mesh) // one))


def parameters(setup: Setup) -> int:
    """Counts the model's parameters."""
    return _count(setup.task)


def operations(setup: Setup) -> int:
    """Counts the operations of all forward and backward passes in training."""
    return setup.timetable.total * setup.config.data.batch_size * setup.task.cost().training


EQUAL = {"parameters": parameters, "flops": operations}


def _count(task: Task) -> int:
    return count_parameters(jax.eval_shape(task.init_model, jax.random.key(0)))


def matched_parameters(request: Request, total: int) -> dict[str, str]:
    """Finds the width, and where that is too coarse the MLP's hidden units, that give this many parameters."""
    config, size = request.config, 0
    if config.model.pretrained:
        raise UsageError(
            f"--equal=parameters cannot change the width of {request.name}: its weights are published ones."
        )
    changes: dict[str, str] = {}
    for field, step in _knobs(config).items():
        resized = functools.partial(_resized, request.but(changes), f"model.{field}", step)
        number = nearest(resized, total, getattr(config.model, field) // step)
        changes[f"model.{field}"] = str(number * step)
        size = resized(number)
        if abs(size / total - 1) <= TOLERANCE:
            return changes
    raise UsageError(
        f"--equal=parameters finds no size within {TOLERANCE:.0%} of the baseline's {total:,} parameters for "
        f"{request.name}: the nearest has {size:,}; give a wider baseline, or fewer heads."
    )


def _resized(request: Request, field: str, step: int, number: int) -> int:
    return _count(tasks.of(request.but({field: str(number * step)}).config))


def nearest(size: Callable[[int], int], wanted: int, start: int) -> int:
    """Searches from `start` for the number above 0 at which an increasing function is nearest to `wanted`."""
    size, high = functools.cache(size), max(start, 1)
    while size(high) < wanted:
        high *= 2
    high = bisect.bisect_left(range(high + 1), wanted, lo=1, key=size)
    return min((max(high - 1, 1), high), key=lambda number: abs(size(number) - wanted))


def _knobs(config: Config) -> dict[str, int]:
    """Lists the fields that make a model larger, coarse ones first, each with the step by which it may change."""
    model, tensor = config.model, max(config.mesh.tensor, 1)
    sizes = {name: leaf for name, leaf in declared(type(model)).items() if leaf.matched == "parameters"}
    sizes = {name: leaf for name, leaf in sizes.items() if getattr(model, name)}  # parts that it lacks stay out
    if not sizes:
        raise UsageError(f"--equal=parameters knows no sizes of {type(model).__name__}; match something else.")
    pairs = 2 if any(getattr(model, "rotaries", ())) else 1  # rotary positions need heads of even width
    return {
        name: getattr(model, divisor) * pairs if (divisor := leaf.valid.note(Multiple)) else tensor
        for name, leaf in sizes.items()
    }
