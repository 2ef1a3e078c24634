"""Checks all configs of a sweep before training, and makes them as large or as costly as the baseline where asked for.

Checking a config opens its data and traces its model; `apart` does so in a separate process, so that no accelerator
is held while the runs need it.
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
MOST = 64  # replicas of one program
STATES, BATCHES = 4, 64  # a replica's step takes about so many times its state's and its batch's bytes
SHORT = 3e11  # operations of a run up to which a CPU saves more by one start than it loses by one program


@dataclasses.dataclass(frozen=True)
class Request:
    """A setting: a config as `loading.resolve` takes it."""

    name: str  # its name in messages
    spec: str  # the config file, with or without an argument
    overrides: Mapping[str, str]  # from a leaf to the text of its value

    def but(self, changes: Mapping[str, str]) -> "Request":
        """Changes some overrides."""
        return dataclasses.replace(self, overrides={**self.overrides, **changes})

    @property
    def flags(self) -> list[str]:
        """The flags of `train.main`."""
        return [f"--config={self.spec}", *(f"{OVERRIDE}{field}={text}" for field, text in self.overrides.items())]

    @property
    def config(self) -> Config:
        """The config itself."""
        return loading.resolve(self.spec, self.overrides)[0]

    def length(self, part: Fraction) -> str:
        """Writes a length of training that is a part or a multiple of the setting's."""
        length = durations.Duration.parse(self.config.train.length, "train.length")
        return f"{float(length.amount * part):.4f} {length.unit}"

    def setup(self) -> Setup:
        """Sets its run up, and raises a UsageError where the run would."""
        try:
            return Setup.of(self.config)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}" if self.name else str(error)) from error


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What `prepare` has found."""

    chosen: Mapping[str, Mapping[str, str]]  # by name, what makes a setting equal to its baseline; {} of a baseline
    sizes: Mapping[str, int]  # by name, parameters or operations with these overrides; 0 where nothing is matched
    seed: int  # of the first setting
    platform: str  # of the devices, such as `cpu`
    together: int  # how many runs that differ in seed or learning rate alone may be trained in one program


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a new process, which ends before its result is given."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@dataclasses.dataclass(frozen=True)
class Examined:
    """What `examined` has found."""

    reasons: Sequence[str]  # why each setting cannot be trained; '' where it can
    platform: str  # of the devices
    together: int  # how many runs that differ in seed or learning rate alone may be trained in one program


def examined(requests: Sequence[Request]) -> Examined:
    """Checks every setting as a run does; those that cannot be trained have a reason in place of an error."""
    reasons, together = [], MOST
    for request in requests:
        try:
            setup = request.setup()
            setup.check_memory()
            together = min(together, _together(setup, asked=False))
            reasons.append("")
        except UsageError as error:
            reasons.append(str(error).removeprefix(f"{request.name}: "))
    return Examined(reasons, jax.default_backend(), together)


def prepare(requests: Sequence[Request], baselines: Sequence[Request], equal: str, replicas: str) -> Prepared:
    """Checks every setting as a run does, and matches it with its baseline, which may be itself, as `EQUAL` says.

    Whether runs are trained together is `yes`, `no`, or `auto`; see `_together`.
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
    return Prepared(chosen, sizes, setups[requests[0].name].config.seed, jax.default_backend(), together)


def _together(setup: Setup, asked: bool) -> int:
    """Finds how many runs of a setting may be trained in one program.

    As many as their states and batches leave room for on a device. Where that was not asked for, it is one if batches
    cannot be stacked or seeds start from different runs, which else are errors, and on a CPU, which trains long runs
    faster one on each core.
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
    """Counts the parameters of the whole model."""
    return _count(setup.task)


def operations(setup: Setup) -> int:
    """Counts the operations of all forward and backward passes of the training."""
    return setup.timetable.total * setup.config.data.batch_size * setup.task.cost().training


EQUAL = {"parameters": parameters, "flops": operations}


def _count(task: Task) -> int:
    return count_parameters(jax.eval_shape(task.init_model, jax.random.key(0)))


def matched_parameters(request: Request, total: int) -> dict[str, str]:
    """Finds a width, and hidden units of the MLP where widths alone are too coarse, for so many parameters."""
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
        f"{request.name}: the nearest has {size:,}; give a baseline that is wider, or fewer heads."
    )


def _resized(request: Request, field: str, step: int, number: int) -> int:
    return _count(tasks.of(request.but({field: str(number * step)}).config))


def nearest(size: Callable[[int], int], wanted: int, start: int) -> int:
    """Searches from `start` for the number, 1 at least, at which an increasing function is nearest to `wanted`."""
    size, high = functools.cache(size), max(start, 1)
    while size(high) < wanted:
        high *= 2
    high = bisect.bisect_left(range(high + 1), wanted, lo=1, key=size)
    return min((max(high - 1, 1), high), key=lambda number: abs(size(number) - wanted))


def _knobs(config: Config) -> dict[str, int]:
    """Finds the fields that make a model larger, coarse ones first, each with the step by which it may change."""
    model, tensor = config.model, max(config.mesh.tensor, 1)
    sizes = {name: leaf for name, leaf in declared(type(model)).items() if leaf.matched == "parameters"}
    sizes = {name: leaf for name, leaf in sizes.items() if getattr(model, name)}  # what it lacks stays out
    if not sizes:
        raise UsageError(f"--equal=parameters knows no sizes of {type(model).__name__}; match something else.")
    pairs = 2 if any(getattr(model, "rotaries", ())) else 1  # rotary positions need an even width of a head
    return {
        name: getattr(model, divisor) * pairs if (divisor := leaf.valid.note(Multiple)) else tensor
        for name, leaf in sizes.items()
    }
