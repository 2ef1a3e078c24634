"""The initial parameters of a run: its model's own, published weights, or another run's, with layers exchanged."""

import jax
from flax.traverse_util import flatten_dict

from attention.errors import UsageError
from models.published import pretrained
from models.surgery import exchange, low_rank, starts
from models.surgery.starts import Distilled, Fresh, Like
from models.transformer import TransformerConfig
from train import optimizer
from train.setup import Setup
from train.start import another_run, exchanged
from train.state import Params
from train.tasks import Task


def check(setup: Setup) -> None:
    """Raises UsageError where a first step cannot be taken, as another run to start from is not there."""
    config, start = setup.config, _start(setup)
    if config.train.init_from:
        another_run.source(config.train.init_from, setup.task.files())
    if start != Fresh():
        _original(setup)
    if pattern := config.train.fresh:
        if not (config.train.init_from or getattr(config.model, "pretrained", "")):
            raise UsageError(
                f"train.fresh={pattern!r} is for a model whose weights are loaded; set model.pretrained or "
                "train.init_from."
            )
        if start != Fresh():
            raise UsageError("train.fresh and train.exchanged both say how arrays start; give one of them.")
        optimizer.check_matched("train.fresh", pattern, optimizer.matching(pattern, setup.shapes.params))


def replace(setup: Setup, params: Params) -> tuple[Params, str]:
    """Replaces one replica's initial parameters by published weights or another run's, and reports it if it does.

    Raises:
      UsageError: there are no such weights, or they do not fit.
    """
    start = _start(setup)
    new, additions = low_rank.split(params)
    params, remark = _loaded(setup, setup.task, new)
    if setup.config.train.fresh:
        params, more = _with_fresh(setup.config.train.fresh, params, new)
        remark = f"{remark}\n{more}"
    if start != Fresh():

        def load(task: Task, params: Params) -> Params:
            return _loaded(setup, task, params)[0]

        distilled = start if isinstance(start, Distilled) else None
        params, more = exchanged.start(setup.task, _original(setup), load, params, setup.replicas, distilled)
        remark = "\n".join(filter(None, [remark, more]))
    return low_rank.joined(params, additions), remark


def _start(setup: Setup) -> Fresh | Like | Distilled:
    return starts.parse(setup.config.train.exchanged)


def _loaded(setup: Setup, task: Task, params: Params) -> tuple[Params, str]:
    """Loads the weights that the config names into a task's parameters, and reports it."""
    directory = setup.config.train.init_from
    params, remark = task.pretrained(params)
    if not directory:
        return params, remark
    params, report = another_run.load(directory, params, task.files())
    return params, "\n".join(filter(None, [remark, report]))


def _with_fresh(pattern: str, params: Params, new: Params) -> tuple[Params, str]:
    """Puts back the initial values of the parameters that a pattern matches, and reports it."""
    chosen = optimizer.matching(pattern, new)
    names = [path for path, fresh in flatten_dict(chosen, sep="/").items() if fresh]
    params = jax.tree.map(lambda fresh, ours, theirs: ours if fresh else theirs, chosen, new, params)
    return params, f"Fresh again: {pretrained.drawn_together(names)}."


def _original(setup: Setup) -> TransformerConfig:
    """Finds the config of the model whose weights are loaded.

    Raises:
      UsageError: there is none, or it differs in more than its mechanisms, or in none of them.
    """
    model, train = setup.config.model, setup.config.train
    if train.init_from:
        there = another_run.source(train.init_from, setup.task.files())[1].model
    elif model.pretrained:
        there = pretrained.original(model.pretrained, model)
    else:
        raise UsageError(
            f"train.exchanged={train.exchanged!r} is for layers of a model whose weights are loaded; set "
            "model.pretrained or train.init_from."
        )
    original = exchange.same_but_mechanisms(model, there)
    if not exchange.exchanged(model, original):
        raise UsageError(
            f"train.exchanged={train.exchanged!r} is for layers with another mechanism than the loaded model's, and "
            "there is none; set it to fresh."
        )
    return original
