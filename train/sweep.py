"""Train a grid of settings, each with several seeds.

python -m train.sweep --config=configs/vit_digits.py --over model.attention=dot_product,super --seeds=5 --workdir=runs/a
python -m train.sweep --config=configs/vit_digits.py --over "model.attention=neural(dim=2)|dot_product,super" \
    --over=optimizer.learning_rate=1e-3,3e-3 --equal=parameters --workdir=runs/b
python -m train.sweep --config=configs/vit_mnist.py --over argument=dot_product,super --workdir=runs/c --print

python -m train.sweep --config=configs/vit_mnist.py --over model.attention=dot_product,super --workdir=runs/d \
    --tune=optimizer.learning_rate=3e-4,1e-3,3e-3 --tune-length=1/3 --declare=study.json

Commas inside brackets and quotes do not split. --over argument=A,B varies the argument of the config file. The same
command continues a sweep that was stopped; with more values or seeds it extends the sweep.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from train import cli

REPLICAS = ("auto", "yes", "no")
EQUAL = ("parameters", "flops")  # the names in `matching.EQUAL`, which takes long to import
SEVERAL = {"action": "append", "default": []}


def run(flags: argparse.Namespace, ended: Callable[[Sequence[Path]], None] = lambda paths: None) -> int:
    """Trains, prints or submits the runs that have not finished; see `sweeping.run`."""
    from train.grids import sweeping  # only here, so that --help answers at once

    return sweeping.run(flags, ended)


main = cli.program(
    __doc__,
    cli.flag("--config", required=True, metavar="FILE[:ARGUMENT]", help="the experiment"),
    cli.OVERRIDES,
    cli.flag("--workdir", type=Path, required=True, metavar="DIR", help="the sweep's folder"),
    cli.flag("--over", **SEVERAL, metavar="FIELD=VALUE,VALUE", help="a field to vary and its values; may be repeated"),
    cli.flag("--seeds", type=cli.count, default=1, help="number of seeds for each setting, from the config's on"),
    cli.flag("--jobs", type=cli.count, default=0, help="runs at a time; default one for each CPU, one on accelerators"),
    cli.flag("--replicas", default="auto", choices=REPLICAS, help="seeds and rates in one program; auto where it pays"),
    cli.flag("--equal", default="", choices=EQUAL, help="what to match with the first value of the first --over"),
    cli.flag("--also", **SEVERAL, metavar="FIELD=VALUE,...", help="a setting beside the grid; may be repeated"),
    cli.flag("--tune", default="", metavar="FIELD=VALUE,...", help="values to try; each setting trains with its best"),
    cli.flag("--tune-length", default="1/3", metavar="PART", help="length of a trial, as a part of a run's"),
    cli.flag("--tune-seeds", type=cli.count, default=1, help="number of seeds to try each value with"),
    cli.flag("--tune-apart", action="store_true", help="try values with seeds that no run has"),
    cli.flag("--tune-beyond", default="2", choices=("0", "2"), help="number of values that may be added at ends"),
    cli.flag("--declare", type=Path, metavar="FILE", help="a JSON file with the question and the comparisons"),
    cli.flag("--print", action="store_true", help="print a command for each run, and train nothing"),
    cli.flag("--slurm", nargs="?", const="", metavar="NAME=VALUE,...", help="submit the runs with submitit"),
    lasting=True,
)(run)


if __name__ == "__main__":
    sys.exit(main())
