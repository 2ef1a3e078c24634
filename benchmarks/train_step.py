"""The time of the jitted training step, of the whole loop around it, and of the same model in Keras 3 and PyTorch.

    python -m benchmarks.train_step --config=configs/vit_cifar100.py --config.data.data_dir=DIR --against=keras,torch
    python -m benchmarks.train_step --config=configs/gpt_pydoc.py --against=torch,torch_compiled

Contestants take turns within one process, round by round, since the speed of machines drifts; medians are over rounds.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from analysis import measurements
from analysis.tables import plain_markdown
from attention.errors import UsageError, check_known
from benchmarks import measure
from train import cli, loading, optimizer, tasks
from train.config.schema import Config
from train.mesh import feeds
from train.optimizer import Rates
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.run.training import TrainingRun
from train.setup import Setup
from train.state import Params, TrainState
from train.step import LossFunction, Step, step_key
from train.tasks import Task

Taker = Callable[[np.ndarray, np.ndarray], float]
COMPILED = "_compiled"
AGAINST = ("keras", "torch", "torch_compiled")
INPUTS = {"vit": ("image", "label"), "gpt": ("tokens", "targets")}  # the arrays of a batch, by model
# The fields of a model that every twin follows, whatever they are.
SIZES = (
    *("depth", "width", "heads", "mlp", "patch", "norm_epsilon", "embedding_dropout", "dropout", "attention_dropout"),
    *("implementation", "scan", "remat"),
)
# The values of other fields that a twin follows too; of all fields that are not named, it has the default.
EITHER = (True, False)
BLOCKS = {"norm": ("pre", "post"), "activation": ("gelu", "relu"), "attention_bias": EITHER}
TWINS: dict[tuple[str, str], dict[str, tuple[Any, ...]]] = {
    ("vit", "keras"): {"pool": ("class_token",)},
    ("vit", "torch"): BLOCKS | {"pool": ("class_token",), "positions": ("learned", "sinusoidal", "none")},
    ("gpt", "torch"): BLOCKS
    | {"positions": ("rotary", "learned", "sinusoidal", "none")}
    | dict.fromkeys(("tied_output", "scale_embeddings", "output_bias"), EITHER),
}
# What no twin does.
PLAIN = {
    "data": {"mixup": 0.0},
    "optimizer": {"name": "adamw", "freeze": "", "lora": "", "rates": ()},
    "train": {"accumulate": 1, "ema": 0.0, "label_smoothing": 0.0, "precision": "float32", "replicas": 1, "rates": ()},
}


@measurements.program(
    __doc__,
    cli.flag("--config", default="configs/vit_digits.py", metavar="FILE[:ARGUMENT]", help="the model"),
    cli.flag("--against", default="", help=f"any of {', '.join(AGAINST)}, from requirements-bench.txt"),
    measure.rounds(5),
    cli.flag("--steps", type=cli.count, default=4, help="steps of each contestant in a round"),
    cli.OVERRIDES,
)
def main(flags: argparse.Namespace) -> measurements.Measured:
    """Yields the results of the step and the loop, and of other stacks."""
    config, _ = loading.resolve(flags.config, flags.overrides)
    others = [name for name in flags.against.split(",") if name]
    for name in others:
        check_known("--against", name, AGAINST)
        check_twin(name, config)
    packages = sorted({name.removesuffix(COMPILED) for name in others})
    result = measure.with_versions(packages, "requirements-bench.txt")
    with silent_training(config) as opened:
        result["loop"] = training_against_step(opened, flags.rounds, flags.steps)
    if others:
        result["stacks"] = stacks(config, others, flags.rounds, flags.steps)
    yield result, markdown(result)


def training_against_step(training: "SilentTraining", rounds: int, steps: int) -> dict[str, Any]:
    """Measures in turn the seconds per step of the bare jitted step, and of the loop with data, logs and checks."""
    most = min(steps, training.feed.most)
    rows, _ = training.feed.take(training.run.step, most)
    times: dict[str, list[float]] = {"step": [], "loop": []}
    for _ in range(rounds):
        calls = measure.seconds(lambda: training.bare(rows, most), -(-steps // most))
        times["step"].append(calls / most)
        times["loop"].append(training.take(steps))
    return {"seconds": measure.medians(times), "loop_over_step": spread_of(times, "loop", "step")}


def spread_of(times: measure.Times, name: str, baseline: str) -> dict[str, float]:
    """Computes the median, the least and the greatest ratio of the rounds."""
    ratio = measure.ratio(times, name, baseline)
    return {"median": ratio["median"], "min": ratio["least"], "max": ratio["greatest"]}


ENDLESS = {"length": "1000000000 steps", "eval_every": "0 steps", "checkpoint_every": "0 steps"}


@contextlib.contextmanager
def silent_training(config: Config) -> Iterator["SilentTraining"]:
    """Opens a training in a temporary folder, and takes its first steps, which compile."""
    config = dataclasses.replace(config, train=dataclasses.replace(config.train, **ENDLESS))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as opened:
        training = SilentTraining(config, Path(folder), opened)
        training.take(2)
        yield training


class SilentTraining:
    """The steps of the loop without evaluation and checkpoints, and without an end."""

    def __init__(self, config: Config, directory: Path, opened: contextlib.ExitStack):
        setup = Setup.of(config)
        resolved = dataclasses.asdict(config)
        opened.enter_context(jax.set_mesh(setup.replicas.mesh))
        opened.enter_context(workdir.claimed(directory / "run", resolved, {}))
        self.kept = opened.enter_context(Checkpoints(directory / "run", 1))
        self.abstract = setup.replicas.abstract(setup.shapes)
        self.run = opened.enter_context(TrainingRun(setup, directory / "run", resolved, self.kept))
        opened.enter_context(self.run.hearing_signals())
        self.state = self.run.start(lambda: setup.fresh(lambda params: (params, "")))
        self.feed = opened.enter_context(feeds.of(setup.replicas, setup.task.sources["train"], ""))
        self.program = setup.program(self.feed, self.run.not_counted)

    def take(self, steps: int) -> float:
        """Takes a number of steps and returns the seconds of one."""
        started, end = time.perf_counter(), self.run.step + steps
        while self.run.step < end:
            rows, index = self.feed.take(self.run.step, min(self.run.count, self.feed.most, end - self.run.step))
            self.state, reported = self.program(self.state, rows, len(index))
            self.run.took(reported, index)
        jax.block_until_ready(self.state)
        return (time.perf_counter() - started) / steps

    def bare(self, rows: Any, count: int) -> TrainState:
        """Takes steps on batches that are already on the devices, with nothing around them."""
        self.state, _ = self.program(self.state, rows, count)
        return self.state


def stacks(config: Config, others: list[str], rounds: int, steps: int) -> dict[str, Any]:
    """Trains the same model with plain AdamW in each stack, from the same weights on the same batches.

    Returns:
      The median seconds per step, ratios, all losses, and the work of a step.
    """
    plain = dataclasses.replace(config.optimizer, name="adamw", schedule="constant", warmup="0 steps", clip=0.0)
    config = dataclasses.replace(config, optimizer=plain)
    task = tasks.of(config)
    batches = task.train_batches(0, 1)
    params = jax.device_get(jax.jit(task.init)(jax.random.key(config.seed)))
    contestants = {"bench": _ours(config, task, params)}
    contestants |= {name: _theirs(name, config, task, params) for name in others}
    names = list(contestants)
    losses, seconds = ({name: [] for name in contestants} for _ in range(2))
    for _ in range(rounds):
        drawn = [next(batches) for _ in range(steps)]
        for name in names:
            seconds[name].append(_timed(contestants[name], drawn, INPUTS[config.model.name], losses[name]))
    ratios = {name: measure.ratio(seconds, name, "bench")["median"] for name in names}
    work = config.data.batch_size * task.cost().training
    best = {name: statistics.median(values[1:] or values) for name, values in seconds.items()}
    units = {"unit": task.unit, "units_a_step": config.data.batch_size * task.units_per_example}
    return {"seconds": best, "ratio_to_bench": ratios, "losses": losses, "flops_a_step": work, **units}


def _timed(step: Taker, batches: list[dict[str, np.ndarray]], inputs: tuple[str, str], losses: list[float]) -> float:
    started = time.perf_counter()
    losses += [step(*(batch[name] for name in inputs)) for batch in batches]
    return (time.perf_counter() - started) / len(batches)


def step_of(step: Step, params: Params, rate: float, seed: int = 0) -> Callable[[Any], float]:
    """Makes a call that takes a training step on a batch at a constant rate, and returns the mean loss."""
    constant = Rates(jnp.float32(rate), jnp.int32(0), jnp.int32(1))
    taken = jax.jit(functools.partial(step, key=step_key(seed), rates=constant), donate_argnames="state")
    state = step.init(jax.tree.map(jnp.copy, params))

    def take(batch: Any) -> float:
        nonlocal state
        state, report = taken(state, batch)
        return float(report["sums"]["loss"] / report["sums"]["weight"])

    return take


def plain_step(config: Config, loss: LossFunction, params: Params) -> Callable[[Any], float]:
    """Makes the `step_of` a loss with a config's optimizer, without schedule, clipping and weight decay."""
    plain = dataclasses.replace(config.optimizer, schedule="constant", clip=0.0, weight_decay=0.0)
    step = Step(loss, optimizer.optimizer(plain), functools.partial(optimizer.learning_rate, plain))
    return step_of(step, params, plain.learning_rate)


def _ours(config: Config, task: Task, params: Params) -> Taker:
    names = INPUTS[config.model.name]
    take = step_of(Step.of(config, task.loss), params, config.optimizer.learning_rate, config.seed)

    def step(*inputs: np.ndarray) -> float:
        return take(dict(zip(names, inputs, strict=True)) | {"weight": np.ones(inputs[1].shape, np.float32)})

    return step


def peer_of(model: str, name: str) -> str:
    """Names the module of a model's twin in another stack, such as `torch_compiled`."""
    return f"benchmarks.peers.{model}_{name.removesuffix(COMPILED)}"


def check_twin(name: str, config: Config) -> None:
    """Raises a UsageError that lists what a config must say, where its twin in another stack would differ from it."""
    known = TWINS.get((config.model.name, name.removesuffix(COMPILED)))
    if known is None:
        raise UsageError(f"--against={name} has no twin of the model {config.model.name}; leave it out.")
    model = {field.name: (field.default,) for field in dataclasses.fields(config.model) if field.name not in SIZES}
    plain = {section: {field: (value,) for field, value in fields.items()} for section, fields in PLAIN.items()}
    wanted = [
        shlex.quote(f"--config.{section}.{field}={values[0]}")
        for section, fields in ({"model": model | known} | plain).items()
        for field, values in fields.items()
        if getattr(getattr(config, section), field, values[0]) not in values
    ]
    if not config.model.mlp:
        wanted.append("--config.model.mlp=128")
    if wanted:
        raise UsageError(f"--against={name} would train another model; to compare the same, give {' '.join(wanted)}")


def _theirs(name: str, config: Config, task: Task, params: Params) -> Taker:
    peer, rates = importlib.import_module(peer_of(config.model.name, name)), config.optimizer
    if name == "keras":
        return peer.make_step(params, task.model, task.sizes[0], rates.learning_rate, rates.weight_decay)
    from benchmarks.peers import torch_layers

    twin = peer.twin(params, task.model)
    return torch_layers.training_step(twin, rates.learning_rate, rates.weight_decay, name.endswith(COMPILED))


def markdown(result: dict[str, Any]) -> str:
    """Writes the results as tables."""
    seconds, ratio = result["loop"]["seconds"], result["loop"]["loop_over_step"]
    lines = [
        plain_markdown(("", "seconds a step"), ((name, f"{value:.4f}") for name, value in seconds.items())),
        f"loop / step: median {ratio['median']:.3f}, from {ratio['min']:.3f} to {ratio['max']:.3f}",
    ]
    if "stacks" in result:
        lines += [stacks_table(result["stacks"]), losses_table(result["stacks"])]
    return "\n\n".join(lines)


def stacks_table(stacks: dict[str, Any]) -> str:
    """Tabulates the speed of each stack."""
    titles = ("stack", "seconds a step", "times the bench's", f"{stacks['unit']}/s", "GFLOP/s")
    rows = []
    for name, seconds in stacks["seconds"].items():
        speed, rate = stacks["units_a_step"] / seconds, stacks["flops_a_step"] / seconds / 1e9
        rows.append((name, f"{seconds:.3f}", f"{stacks['ratio_to_bench'][name]:.2f}", f"{speed:,.0f}", f"{rate:.0f}"))
    return plain_markdown(titles, rows)


def losses_table(stacks: dict[str, Any], steps: Collection[int] = ()) -> str:
    """Tabulates the losses of each stack, at some steps or at all."""
    rows = enumerate(zip(*stacks["losses"].values(), strict=True), 1)
    shown = ((step, *(f"{loss:.4f}" for loss in row)) for step, row in rows if not steps or step in steps)
    return plain_markdown(("step", *stacks["losses"]), shown)


if __name__ == "__main__":
    sys.exit(main())
