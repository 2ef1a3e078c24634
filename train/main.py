"""Train a model: the command line, and nothing else.

python -m train.main --config=configs/vit_cifar100.py:super --workdir=runs/super --config.optimizer.learning_rate=1e-3
"""

import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown

DEFAULT_CONFIG = "configs/vit_digits.py"
HELP = f"""Train one model on one data set and evaluate it.

  python -m train.main [--config=FILE[:ARGUMENT]] [--workdir=DIR]
                       [--config.FIELD=VALUE ...] [--dry-run [--devices=N]]

  --config=FILE[:ARGUMENT]  the experiment; {DEFAULT_CONFIG} without it
  --workdir=DIR             the run's folder; runs/<config>-<time> without it;
                            an existing run is continued
  --config.FIELD=VALUE      overrides a leaf of the config,
                            such as --config.model.attention=efficient
  --dry-run                 without data and work directory, compiles a training
                            step for the mesh on fake devices, and prints what
                            it takes: memory a device, operations
  --devices=N               how many of them; as many as the mesh has without it

Examples:
  python -m train.main
  python -m train.main --config=configs/vit_mnist.py:optimised \\
      --config.train.length='5 epochs'
  python -m train.main --config=configs/vit_cifar100_super.py \\
      --workdir=runs/super --config.seed=1
  python -m train.main --dry-run --config=configs/gpt_wikitext103.py \\
      --config.mesh.fsdp=4 --config.mesh.tensor=2"""
VALUED = ("--config", "--workdir", "--devices")
SWITCHES = ("--dry-run",)


def parse(arguments: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Flags in any order, as `--name=value` or `--name value`: those of the program, and those of the config.

    Raises:
      UsageError: a flag that is unknown, given twice or without a value.
    """
    flags: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if not (name in VALUED or argument in SWITCHES or name.startswith("--config.")):
            raise unknown("argument", argument, [*VALUED, *SWITCHES, "--config.FIELD", "--help"])
        if not equals and argument not in SWITCHES:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{name} needs a value: write {name}=VALUE.")
            value = rest.pop(0)
        if name in flags:
            raise UsageError(f"{name} is given twice, as {flags[name]!r} and {value!r}; give it once.")
        flags[name] = value
    overrides = {
        name.removeprefix("--config."): flags.pop(name) for name in list(flags) if name.startswith("--config.")
    }
    return flags, overrides


def run(arguments: Sequence[str]) -> None:
    """Parses, validates and trains.

    Raises:
      UsageError: any mistake in the arguments.
    """
    flags, overrides = parse(arguments)
    from train import compilation, configs, loop

    spec = flags.get("--config", DEFAULT_CONFIG)
    config, plain = configs.resolve(spec, overrides)
    if "--dry-run" in flags:
        dry_run(config, flags)
        return
    if "--devices" in flags:
        raise UsageError("--devices is for --dry-run; a run takes all devices that there are.")
    compilation.keep_programs()
    default = Path("runs") / f"{configs.name_of(spec)}-{time.strftime('%Y%m%d-%H%M%S')}"
    loop.train_and_evaluate(config, plain, Path(flags.get("--workdir", default)))


def dry_run(config: Any, flags: dict[str, str]) -> None:
    """Prints what a training step takes.

    Raises:
      UsageError: as a run would, or a flag that is for runs.
    """
    if "--workdir" in flags:
        raise UsageError("--dry-run writes nothing; leave out --workdir.")
    from train import dry

    dry.use_fake_devices(config.mesh, flags.get("--devices", ""))
    for line in dry.DryRun.of(config).report():
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit code: 0 done or saved, 1 the training failed, 2 a mistake in the arguments."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if {"--help", "-h"} & set(arguments):
        print(HELP)
        return 0
    logging.getLogger("jax").setLevel(logging.ERROR)
    try:
        run(arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
