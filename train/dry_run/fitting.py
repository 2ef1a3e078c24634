"""What makes a step fit on described devices whose memory it exceeds: each remedy is tried by compiling again."""

from collections.abc import Callable, Iterator

import jax

from attention.errors import UsageError
from train.config.schema import Config
from train.dry_run import dry
from train.mesh.memory import scaled
from train.mesh.refusals import TooLarge

LOSS_CHUNK = "128"  # tokens


def report(load: Callable[[dict[str, str]], Config], devices: list[jax.Device]) -> Iterator[str]:
    """Yields the lines of a dry run, or of what was tried where the step does not fit, which ends in a UsageError.

    Args:
      load: Makes the config with further overrides, from field to text.
      devices: The described devices.
    """
    run = dry.DryRun.of(load({}), devices)
    try:
        yield from run.report()
        return
    except TooLarge as error:
        needed = error
    yield f"It does not fit: {needed}"
    needs = f"A step needs {scaled(needed.used, 'B')} of a device's {scaled(needed.limit, 'B')}"
    alone = remedies(run)
    together = {field: text for remedy in alone for field, text in remedy.items()}
    for remedy in [*alone, *([together] if len(alone) > 1 else [])]:
        words = " ".join(f"--config.{field}={text}" for field, text in remedy.items())
        size, fits = _tried(load, remedy, devices)
        if not size:
            continue
        yield f"Tried {words}: {scaled(size, 'B')}"
        if fits:
            raise UsageError(f"{needs}; with {words} it needs {scaled(size, 'B')}.")
    raise UsageError(f"{needs}, and nothing that was tried makes it fit; use more devices.")


def remedies(run: dry.DryRun) -> list[dict[str, str]]:
    """Lists the overrides that save memory and that the config does not have yet, what costs least time first."""
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
    """Counts the bytes that a step takes on a device, 0 where the config forbids it, and tells whether it fits."""
    try:
        run = dry.DryRun.of(load(remedy), devices)
        return sum(run.memory(run.compile()).values()), True
    except TooLarge as error:
        return error.used, False
    except UsageError:
        return 0, False
