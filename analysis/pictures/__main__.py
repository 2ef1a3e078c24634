"""Draw pictures of finished runs, each as PNG and SVG.

python -m analysis.pictures curves runs/super-0 runs/super-1 runs/efficient-0 runs/efficient-1 --out=curves
python -m analysis.pictures comparison runs/digits --metric=accuracy --out=comparison
python -m analysis.pictures attention --workdir=runs/super --examples 3 5 10 --out=looks
python -m analysis.pictures attention --workdir=runs/gpt --text="The return statement" --out=looks
python -m analysis.pictures surface --workdir=runs/neural --layers 0 1 --out=surface
python -m analysis.pictures trials configs/trials.json --kind=frontier --out=docs/images/recall.svg
python -m analysis.pictures trials configs/trials.json --out=docs/images/trials.svg
python -m analysis.pictures projection --sigmas 0.05 0.25 1 --out=projection
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attention.errors import UsageError, unknown
from train import cli
from train.grids.trial_table import TrialTable

STACKS = ("cross", "encoder", "decoder")  # the same as `attention_maps.STACKS`, which is slow to import


def _curves(flags: argparse.Namespace) -> Any:
    from analysis.pictures import curves

    return curves.figure(curves.read(flags.runs), flags.metrics, flags.axes, flags.epoch, flags.title)


def _comparison(flags: argparse.Namespace) -> Any:
    from analysis.metrics import METRICS
    from analysis.pictures import intervals

    values = intervals.read(flags.runs, flags.metric)
    if unread := [label for label in flags.only if label not in values]:
        raise unknown("setting", unread[0], values)
    values = {label: values[label] for label in flags.only or values}
    return intervals.figure(values, METRICS[flags.metric], [flags.baseline], flags.title)


def _attention(flags: argparse.Namespace) -> Any:
    from analysis.pictures import attention_maps, heads
    from train.run import workdir

    task = workdir.read_config(flags.workdir)["task"]
    if task in ("image_classification", "captioning"):
        if flags.text:
            raise UsageError(f"{flags.workdir} is a run of {task}; give --examples in place of --text.")
        if task == "captioning":
            return heads.of_captions(attention_maps.of_captions(flags.workdir, flags.examples, flags.split, flags.step))
        maps = attention_maps.of_images(flags.workdir, flags.examples, flags.split, flags.step)
        return heads.of_heads(maps) if len(flags.examples) == 1 else heads.of_examples(maps)
    if not flags.text:
        raise UsageError(f"{flags.workdir} is a run of {task}; give it a --text to read.")
    if task == "translation":
        maps = attention_maps.of_translation(flags.workdir, flags.text, flags.stack, flags.step)
    else:
        maps = attention_maps.of_text(flags.workdir, flags.text, flags.step)
    return heads.of_tokens(maps)


def _surface(flags: argparse.Namespace) -> Any:
    from analysis.pictures import surfaces

    trained = [surfaces.of_run(flags.workdir, flags.extent, layer, flags.head, flags.step) for layer in flags.layers]
    return surfaces.figure([surfaces.paraboloid(flags.extent), *trained])


def _trials(flags: argparse.Namespace) -> Any:
    from analysis.pictures import trials

    table = TrialTable.read(flags.table)
    if flags.kind == "frontier" and not table.trials.keys() & set(trials.RECALL):
        raise UsageError(
            f"{flags.table} has no cells of {', '.join(trials.RECALL)}, which the frontier shows; run one first."
        )
    return trials.frontier(table) if flags.kind == "frontier" else trials.heat(table)


def _projection(flags: argparse.Namespace) -> Any:
    from analysis.pictures import projection

    points = projection.noisy_circle(flags.points, flags.noise, flags.seed)
    return projection.figure(points, flags.sigmas, flags.steps)


def parser() -> cli.Parser:
    """Makes the parser, in which the flags of a kind of picture follow its name."""
    whole = cli.Parser(__doc__)

    def kind(name, draw, text):
        subparser = whole.add_kind(name, text)
        subparser.set_defaults(draw=draw)
        subparser.add_argument("--out", type=Path, default=Path(name), help="name of the files, without an ending")
        return subparser

    def of_a_run(name, draw, text):
        subparser = kind(name, draw, text)
        subparser.add_argument("--workdir", type=Path, required=True, help="the run's folder")
        subparser.add_argument("--step", default="best", help="best, last or a step that has a checkpoint")
        cli.CODE(subparser)
        return subparser

    drawn = kind("curves", _curves, "training curves, mean and spread over seeds")
    drawn.add_argument("runs", nargs="+", metavar="[LABEL=]DIR", help="work directories; equal labels make one curve")
    drawn.add_argument("--metrics", nargs="*", default=(), help="such as loss and accuracy; default those of the task")
    drawn.add_argument("--axes", nargs="+", default=("step", "seconds"), help="any of step, epoch and seconds")
    drawn.add_argument("--epoch", type=float, default=0.0, help="number of steps in an epoch, for the axis epoch")
    drawn.add_argument("--title", default="", help="title of the picture; by default it says what is drawn")
    drawn = kind("comparison", _comparison, "a metric of all settings: seeds, means and their intervals")
    drawn.add_argument("runs", nargs="+", type=Path, metavar="DIR ...", help="folders with finished runs below them")
    drawn.add_argument("--metric", default="accuracy", help="the metric, on test data at the best step")
    drawn.add_argument("--baseline", default="dot_product", help="the setting with which the others are compared")
    drawn.add_argument("--only", nargs="+", default=(), metavar="SETTING", help="the settings to draw; default all")
    drawn.add_argument("--title", default="", help="title of the picture; by default it says what is drawn")
    drawn = of_a_run("attention", _attention, "what a model attends to, by layer and head, and its rollout")
    drawn.add_argument("--examples", nargs="+", type=int, default=[0], help="images; a single one shows every head")
    drawn.add_argument("--split", default="test", help="split of the images: train, validation or test")
    drawn.add_argument("--text", default="", help="text to read, for models of text")
    drawn.add_argument("--stack", default="cross", choices=STACKS, help="part of an encoder-decoder")
    drawn = of_a_run("surface", _surface, "scores over a plane: of the dot product, and of a trained MLP on pairs")
    drawn.add_argument("--layers", nargs="+", type=int, default=[0], help="layers of the run, from 0")
    drawn.add_argument("--head", type=int, default=0, help="the head, from 0, if heads have different weights")
    drawn.add_argument("--extent", type=float, default=2.0, help="size of the plane to either side of 0")
    drawn = kind("trials", _trials, "what mechanisms can do in small tasks, from a table that train.trials wrote")
    drawn.add_argument("table", type=Path, metavar="TABLE", help="such as configs/trials.json")
    drawn.add_argument(
        "--kind", default="map", choices=("map", "frontier"), help="all cells, or recall against the cache's size"
    )
    drawn = kind("projection", _projection, "noisy points on a circle, before and after projection attention")
    drawn.add_argument("--sigmas", nargs="+", type=float, default=(0.05, 0.25, 1.0), help="σ of each panel")
    drawn.add_argument("--steps", type=int, default=1, help="number of steps of attention")
    drawn.add_argument("--points", type=int, default=48, help="number of points")
    drawn.add_argument("--noise", type=float, default=0.1, help="standard deviation of each coordinate")
    drawn.add_argument("--seed", type=int, default=0, help="seed of the points")
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns its exit code."""
    return cli.run(lambda: _run(parser().parse_args(arguments)))


def _run(flags: argparse.Namespace) -> None:
    from analysis.pictures import style

    style.places(flags.out)
    written = style.save(flags.draw(flags), flags.out)
    print("Drawn: " + " and ".join(map(str, written)))


if __name__ == "__main__":
    sys.exit(main())
