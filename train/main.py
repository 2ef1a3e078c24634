"""Train one model on one data set and evaluate it.

python -m train.main
python -m train.main --config=configs/vit_mnist.py:optimised --config.train.length='5 epochs'
python -m train.main --config=configs/vit_cifar100_super.py --workdir=runs/super --config.seed=1
python -m train.main --dry-run --config=configs/gpt_wikitext103.py --config.mesh.fsdp=4 --config.mesh.tensor=2
"""

import argparse
import contextlib
import logging
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from attention.errors import UsageError
from train import cli
from train.cli import terminal
from train.run import console

DEFAULT_CONFIG = "configs/vit_digits.py"
LIST = "list"  # given in place of a config


def parser() -> cli.Parser:
    """Makes the parser of the flags."""
    parser = cli.Parser(__doc__)
    text = "the experiment; list prints all that come with the project"
    parser.add_argument("--config", metavar="FILE[:ARGUMENT]", default=DEFAULT_CONFIG, help=text)
    parser.add_overrides()
    text = "the run's folder, default runs/<config>-<time>; a run in it is continued"
    parser.add_argument("--workdir", metavar="DIR", help=text)
    cli.CODE(parser)
    text = "compile a step for the mesh on fake devices, without data, and print its memory and work"
    parser.add_argument("--dry-run", action="store_true", help=text)
    parser.add_argument("--devices", type=cli.count, help="number of devices for --dry-run; default the mesh's size")
    text = "chips for which --dry-run compiles with their own compiler, such as v5e:4x4; see docs/scaling.md"
    parser.add_argument("--topology", metavar="NAME", help=text)
    several = "Several processes (SLURM, Open MPI, GKE and Cloud TPU need no flags)"
    text = "where the first process listens; see also train.launch"
    parser.add_argument("--coordinator", metavar="HOST:PORT", section=several, help=text)
    parser.add_argument("--num-processes", type=int, section=several, help="number of processes")
    parser.add_argument("--process-id", type=int, section=several, help="number of this process, from 0 on")
    return parser


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
    """Reads the program's flags and the overrides of the config, from field to text."""
    flags = parser().parse_args(arguments)
    return flags, flags.overrides


def run(arguments: Sequence[str]) -> None:
    """Parses, validates and trains."""
    if "--dry-run" in arguments:
        dry_run(arguments)
        return
    from train.mesh import processes

    with processes.ending_alone():
        own = processes.join(arguments)
        with processes.together():
            flags, overrides = parse(own)
            for name in ("devices", "topology"):
                if getattr(flags, name) is not None:
                    raise UsageError(f"--{name} is for --dry-run; a run takes all available devices.")
            from train import loading, loop
            from train.mesh import compilation

            if flags.config == LIST:
                print(loading.listing())
                return
            config, plain = loading.resolve(flags.config, overrides)
            compilation.keep_programs()
        directory = Path(processes.of_first(flags.workdir or str(loading.default_workdir(flags.config))))
        stopped = loop.train_and_evaluate(config, plain, directory) is None
        if stopped and processes.is_first():
            print(continuing(arguments, "" if flags.workdir else f"--workdir={directory}"), flush=True)


def continuing(arguments: Sequence[str], place: str) -> str:
    """Says what to type to continue; `place` is the --workdir that the program chose, '' if the user chose it."""
    import jax

    if command := os.environ.get(console.COMMAND):
        return f"To continue: {command}"
    if not place:
        return "The same command continues."
    if jax.process_count() > 1:  # the command that started them all is unknown here
        return f"The same command with {shlex.quote(place)} continues."
    return f"To continue: {console.typed('train.main', arguments, place)}"


def dry_run(arguments: Sequence[str]) -> None:
    """Prints the memory and work of a training step."""
    from train.mesh import processes

    flags, overrides = parse(arguments)
    for name in processes.FLAGS:
        if getattr(flags, name.removeprefix("--").replace("-", "_")) not in ("", None):
            raise UsageError(f"--dry-run takes one process; leave out {name}.")
    if flags.workdir:
        raise UsageError("--dry-run writes nothing; leave out --workdir.")
    from attention.mesh import compiled_for
    from train import loading
    from train.config.schema import Config
    from train.dry_run import dry, topology

    if flags.config == LIST:
        raise UsageError("--config=list prints the configs; leave out --dry-run.")

    def load(more: Mapping[str, str]) -> Config:
        return loading.resolve(flags.config, overrides | more)[0]

    devices, config = None, load({})
    if flags.topology is None:
        dry.use_fake_devices(config.mesh, flags.devices)
    elif flags.devices:
        raise UsageError("--topology says how many devices there are; leave out --devices.")
    else:
        devices = topology.devices(flags.topology)
    with compiled_for(devices[0]) if devices else contextlib.nullcontext():
        for line in dry.report(load, devices):
            print(terminal.filled(line), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code, which is 0 too for a run that was stopped and saved."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"--help", "-h"} & set(arguments):
        return cli.run(lambda: parser().print_help())
    logging.getLogger("jax").setLevel(logging.ERROR)
    from train.mesh import processes

    trains = not {"--dry-run", f"--config={LIST}"} & set(arguments)
    return cli.run(lambda: run(arguments), processes.is_first, lasting=trains)


if __name__ == "__main__":
    sys.exit(main())
