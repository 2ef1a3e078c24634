"""Dry runs: a training step compiled for a mesh, without data or a work directory, and XLA's plan of its memory."""

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.sharding import PartitionSpec as P

from attention.errors import UsageError
from attention.mesh import described
from train import cli, tasks
from train.config.schema import Config, MeshConfig
from train.dry_run import chips, collectives
from train.mesh import compilation, feeds, memory
from train.mesh.sharding import batch_sharding
from train.run.report import outline
from train.setup import Setup
from train.start import Initial
from train.state import TrainState
from train.step import Batch
from train.tasks import Task

LOSS_CHUNK = "128"  # tokens, the remedy's train.loss_chunk


def use_fake_devices(mesh: MeshConfig, devices: int | None) -> None:
    """Makes JAX run on fake devices on this machine's CPU; must be called before JAX looks for devices.

    Without `devices`, the mesh gives their number; an axis of -1 then has one device.
    """
    count = devices or math.prod(size for size in dataclasses.astuple(mesh) if size > 0)
    if count > cli.MOST:
        raise UsageError(f"The mesh has {count} devices, and a dry run makes at most {cli.MOST}; give a smaller mesh.")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A training step as shapes with shardings; nothing is on a device."""

    setup: Setup  # with blank data
    state: TrainState  # all replicas' state
    batch: Batch  # the largest of one step

    @classmethod
    def of(cls, config: Config, devices: list[jax.Device] | None = None) -> "DryRun":
        """Makes the dry run of a config that states all sizes, on described devices or else on this machine's."""
        setup = Setup.of(config, blank_task, devices)
        Initial.of(setup)  # raises the mistakes that a run would meet
        return cls(setup, setup.replicas.abstract(setup.shapes), batch_of(setup))

    def lower(self) -> jax.stages.Lowered:
        """Lowers a call of one step for the mesh."""
        setup = self.setup
        with feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed:
            program = setup.program(feed)  # its keys are arrays, which described devices cannot hold
            with jax.set_mesh(setup.replicas.mesh):
                return program.lower(self.state, self.batch)

    def compile(self) -> Any:
        """Compiles the step like `compilation.compiled`; raises TooLarge if it does not fit on its device."""
        chip, given = chips.of(self.device), memory.bytes_a_device((self.state, self.batch))
        if described():
            memory.check_compiling()
        if chip and given > chip.memory:
            raise compilation.TooLarge(given, chip.memory)
        try:
            compiled = compilation.compiled(self.lower)
        except compilation.TooLarge as error:
            raise compilation.TooLarge(error.used + (given if error.more else 0), error.limit) from error
        if chip and (taken := sum(self.memory(compiled).values())) > chip.memory:
            raise compilation.TooLarge(taken, chip.memory)
        return compiled

    @property
    def device(self) -> jax.Device:
        """The first device of the mesh."""
        return self.setup.replicas.mesh.devices.flat[0]

    def memory(self, compiled: Any) -> dict[str, int]:
        """Counts the bytes of a step's parts on a device; those of state and batch are exact."""
        plan = compiled.memory_analysis()
        fresh = plan.output_size_in_bytes - plan.alias_size_in_bytes  # outputs that do not reuse the old state's memory
        return memory.parts(self.state) | {
            "batch": memory.bytes_a_device(self.batch),
            "gradients and activations": plan.temp_size_in_bytes + fresh,
        }

    def report(self) -> Iterator[str]:
        """Compiles the step, and yields lines about its work and memory."""
        setup, task = self.setup, self.setup.task
        yield from outline("Dry run of", setup, self.state, fake="described " if described() else "fake ")
        started = time.monotonic()
        compiled = self.compile()
        took = time.monotonic() - started
        size, devices = setup.config.data.batch_size * len(setup.replicas), setup.replicas.mesh.size
        flops, estimate = size * task.cost().training, compiled.cost_analysis() or {}
        by_xla = f", {memory.scaled(devices * estimate['flops'], 'FLOP')} by XLA" if "flops" in estimate else ""
        yield f"A step: {size * task.units_per_example:,} {task.unit}, {memory.scaled(flops, 'FLOP')} counted{by_xla}"
        sizes, chip = self.memory(compiled), chips.of(self.device)
        listed = ", ".join(f"{name} {memory.scaled(size, 'B')}" for name, size in sizes.items())
        of_all = f" of {memory.scaled(chip.memory, 'B')}" if chip else ""
        yield f"Memory a device during a step: {memory.scaled(sum(sizes.values()), 'B')}{of_all} ({listed})"
        if described():
            yield from collectives.lines(compiled.as_text(), list(setup.replicas.mesh.devices.flat))
            if chip:
                best = flops / devices / chip.flops
                speed = f"{chip.flops / 1e12:.0f} TFLOP/s in bfloat16"
                yield f"The counted operations of a device take at least {1000 * best:.3g} ms, at {speed}"
            yield f"Compiled in {took:.0f} s for {self.device.device_kind}, and not run."


def blank_task(config: Config) -> Task:
    """Makes the task of a config with a blank example for data, and with random weights."""
    if config.model.pretrained:  # random weights have the same shapes
        config = dataclasses.replace(config, model=dataclasses.replace(config.model, pretrained=""))
    small = dataclasses.replace(config.data, batch_size=1, eval_batch_size=1, workers=0)
    return tasks.find(config.task)(dataclasses.replace(config, data=small), dry=True)


def batch_of(setup: Setup) -> Batch:
    """Finds the shapes of all replicas' batch from the blank task's batch of one example."""
    replicas, size = setup.replicas, setup.config.data.batch_size
    with contextlib.closing(setup.task.train_batches(0, 1)) as batches:
        example = next(batches)
    shapes = {name: (1, *replicas.front, size, *x.shape[1:]) for name, x in example.items()}
    split = functools.partial(batch_sharding, replicas.mesh, P(None, *replicas.front_spec, replicas.batch_axes))
    held = {name: jax.dtypes.canonicalize_dtype(x.dtype) for name, x in example.items()}  # int64 is int32 on devices
    return {name: jax.ShapeDtypeStruct(shape, held[name], sharding=split(shape)) for name, shape in shapes.items()}


def report(load: Callable[[dict[str, str]], Config], devices: list[jax.Device] | None) -> Iterator[str]:
    """Yields a dry run's lines. If the step does not fit, yields lines about remedies, and raises a UsageError.

    `load` makes the config with further overrides. The devices are described ones; None stands for this machine's.
    """
    run = DryRun.of(load({}), devices)
    try:
        yield from run.report()
        return
    except compilation.TooLarge as error:
        needed = error
    yield f"It does not fit: {needed}"
    needs = f"A step needs {memory.scaled(needed.used, 'B')} of a device's {memory.scaled(needed.limit, 'B')}"
    alone = remedies(run)
    together = {field: text for remedy in alone for field, text in remedy.items()}
    for remedy in [*alone, *([together] if len(alone) > 1 else [])]:
        words = " ".join(f"--config.{field}={text}" for field, text in remedy.items())
        size, fits = _tried(load, remedy, devices)
        if not size:
            continue
        yield f"Tried {words}: {memory.scaled(size, 'B')}"
        if fits:
            raise UsageError(f"{needs}; with {words} it needs {memory.scaled(size, 'B')}.")
    raise UsageError(f"{needs}, and nothing that was tried makes it fit; use more devices.")


def remedies(run: DryRun) -> list[dict[str, str]]:
    """Lists overrides that save memory and are not in the config yet, those that cost least time first."""
    config, mesh = run.setup.config, run.setup.replicas.mesh
    over_batch = mesh.shape["data"] * mesh.shape["fsdp"]
    examples = config.data.batch_size // over_batch
    all_of_them = (
        (mesh.shape["data"] > 1, {"mesh.data": "1", "mesh.fsdp": str(over_batch)}),
        (not config.train.loss_chunk, {"train.loss_chunk": LOSS_CHUNK}),
        (getattr(config.model, "remat", "block") != "block", {"model.remat": "block"}),
        (not getattr(config.model, "scan", True), {"model.scan": "True"}),
        (examples > config.train.accumulate, {"train.accumulate": str(examples)}),
    )
    return [overrides for helps, overrides in all_of_them if helps]


def _tried(
    load: Callable[[dict[str, str]], Config], remedy: dict[str, str], devices: list[jax.Device]
) -> tuple[float, bool]:
    """Counts the bytes that a step takes on a device, 0 if the config forbids it, and tells whether it fits."""
    try:
        run = DryRun.of(load(remedy), devices)
        return sum(run.memory(run.compile()).values()), True
    except compilation.TooLarge as error:
        return error.used, False
    except UsageError:
        return 0, False
