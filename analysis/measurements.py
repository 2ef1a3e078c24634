"""Programs that measure: they print tables and write JSON with the command, the machine and the versions."""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax

from attention.errors import UsageError
from train import cli
from train.cli.files import write_json
from train.run import workdir

DEVICES = ("cpu", "gpu", "tpu")
DEVICE = cli.flag("--device", default="", choices=DEVICES, help="the device; by default JAX chooses")
OUT = cli.flag("--out", type=cli.new_file, help="file for the results, as JSON")

Measured = Iterator[tuple[dict[str, Any], str]]  # all results so far, and the tables of the new ones


def use(device: str) -> None:
    """Makes JAX use a kind of device of `DEVICES`; '' leaves the choice to JAX.

    Raises:
      UsageError: There is no such device, or JAX already runs on another one.
    """
    if not device:
        return
    jax.config.update("jax_platforms", device)
    try:
        backend = jax.default_backend()
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"There is no --device={device} here ({reason}); leave it out to take what is.") from error
    if backend != device:
        raise UsageError(f"--device={device} comes too late: this process runs on {backend} already.")


def header(program: str) -> dict[str, Any]:
    """Collects the command, the machine and the versions, for a result's JSON."""
    command = " ".join([program, *sys.argv[1:]])
    return {"command": command, "cpus": os.cpu_count(), "machine": platform.machine()} | workdir.environment()


def program(
    doc: str, *flags: Callable[[cli.Parser], Any]
) -> Callable[[Callable[[argparse.Namespace], Measured]], Callable[..., int]]:
    """Turns a generator of measurements into the `main` of a program; see `cli.program`.

    The program has a flag `--out` too. Whenever the generator yields, its tables are printed and all results so far are
    written.
    """

    def decorate(measure: Callable[[argparse.Namespace], Measured]) -> Callable[..., int]:
        def act(given: argparse.Namespace) -> None:
            use(getattr(given, "device", ""))
            about = header(main.parser().prog)  # first, since the code may change while it measures
            for result, tables in measure(given):
                if given.out:
                    write_json(given.out, about | result)
                print(tables, flush=True)

        main = cli.program(doc, *flags, OUT, lasting=True)(act)
        return main

    return decorate
