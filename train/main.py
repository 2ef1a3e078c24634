"""Train a model: the command line, and nothing else.

python -m train.main --config=configs/vit_cifar100.py:super --workdir=runs/super --config.optimizer.learning_rate=1e-3
"""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attention.errors import UsageError, unknown

DEFAULT_CONFIG = "configs/vit_digits.py"
HELP = f"""Train one model on one data set and evaluate it.

  python -m train.main [--config=FILE[:ARGUMENT]] [--workdir=DIR]
                       [--config.FIELD=VALUE ...] [--dry-run [--devices=N]]
                       [--coordinator=HOST:PORT --num-processes=N
                        --process-id=I]

  --config=FILE[:ARGUMENT]  the experiment; {DEFAULT_CONFIG} without it
  --workdir=DIR             the run's folder; runs/<config>-<time> without it;
                            an existing run is continued
  --config.FIELD=VALUE      overrides a leaf of the config,
                            such as --config.model.attention=efficient
  --dry-run                 without data and work directory, compiles a training
                            step for the mesh on fake devices, and prints what
                            it takes: memory a device, operations
  --devices=N               how many of them; as many as the mesh has without it
  --coordinator=HOST:PORT   with --num-processes=N and --process-id=I: this is
                            one of N processes; under SLURM, Open MPI, GKE and
                            Cloud TPU without flags; on one machine see
                            train.launch

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
    if "--dry-run" in arguments:
        dry_run(arguments)
        return
    from train import distributed

    arguments = distributed.join(arguments)
    with distributed.together():
        flags, overrides = parse(arguments)
        if "--devices" in flags:
            raise UsageError("--devices is for --dry-run; a run takes all devices that there are.")
        from train import compilation, configs, loop

        spec = flags.get("--config", DEFAULT_CONFIG)
        config, plain = configs.resolve(spec, overrides)
        compilation.keep_programs()
        default = Path("runs") / f"{configs.name_of(spec)}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(distributed.of_first(flags.get("--workdir", str(default))))
    loop.train_and_evaluate(config, plain, directory)


def dry_run(arguments: Sequence[str]) -> None:
    """Prints what a training step takes.

    Raises:
      UsageError: as a run would, or a flag that is for runs.
    """
    flags, overrides = parse(arguments)
    if "--workdir" in flags:
        raise UsageError("--dry-run writes nothing; leave out --workdir.")
    from train import configs, dry

    config, _ = configs.resolve(flags.get("--config", DEFAULT_CONFIG), overrides)
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
    from train import distributed

    return distributed.exit_code(lambda: run(arguments))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the program at once where the loop does not hear it
    sys.exit(main())
