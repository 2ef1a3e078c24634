"""Programs that measure: they print tables, and write JSON that says how, where and with what it was measured."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from train import cli
from train.run import workdir

# What has been measured so far, and the tables of what is new in it.
Measured = Iterator[tuple[dict[str, Any], str]]


def header(program: str) -> dict[str, Any]:
    """Returns the command, the machine and the versions, for a result's JSON."""
    command = " ".join([program, *sys.argv[1:]])
    return {"command": command, "cpus": os.cpu_count(), "machine": platform.machine()} | workdir.environment()


def program(
    doc: str, *flags: Callable[[cli.Parser], Any]
) -> Callable[[Callable[[argparse.Namespace], Measured]], Callable[..., int]]:
    """Turns a function of flags that measures into the `main` of a program; see `cli.program`.

    The program has a flag `--out` too. Whenever something has been measured, its tables are printed, and all that has
    been measured so far is written.
    """

    def decorate(measure: Callable[[argparse.Namespace], Measured]) -> Callable[..., int]:
        def act(given: argparse.Namespace) -> None:
            for result, tables in measure(given):
                print(tables, flush=True)
                if given.out:
                    whole = header(main.parser().prog) | result
                    given.out.write_text(json.dumps(whole, indent=2) + "\n")

        main = cli.program(doc, *flags, cli.flag("--out", type=cli.new_file, help="where the JSON goes"))(act)
        return main

    return decorate
