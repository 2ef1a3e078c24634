"""The initial parameters of a run: its model's own, published weights, or another run's, with layers exchanged."""

import dataclasses

import jax
from flax.traverse_util import flatten_dict

from attention.errors import UsageError
from models.published import pretrained
from models.surgery import exchange, low_rank, starts
from models.surgery.starts import Distilled, Fresh
from models.transformer import TransformerConfig
from train import optimizer
from train.config.schema import Config
from train.mesh.replicas import Replicas
from train.setup import Setup
from train.start import exchanged
from train.start.another_run import AnotherRun
from train.state import Params
from train.tasks import Task


@dataclasses.dataclass(frozen=True)
class Initial:
    """What replaces the parameters that a model draws; found and checked before anything is computed.

    Attributes:
      task: The task.
      replicas: The mesh, and how batches lie on it.
      run: The run whose parameters are taken, or None.
      original: The config of the model whose weights are loaded, where layers that are exchanged do not start fresh.
      distilled: How these layers are distilled; None where they are not.
      fresh: The pattern of parameters that keep what was drawn; '' for none.
    """

    task: Task
    replicas: Replicas
    run: AnotherRun | None
    original: TransformerConfig | None
    distilled: Distilled | None
    fresh: str

    @classmethod
    def of(cls, setup: Setup) -> "Initial":
        """Finds what a config asks for, and refuses what is not there or does not go together."""
        config, start = setup.config, starts.parse(setup.config.train.exchanged)
        run = AnotherRun.of(config.train.init_from, setup.task.files()) if config.train.init_from else None
        original = None if start == Fresh() else _original(config, run)
        _check_fresh(config, start == Fresh(), setup.shapes.params)
        distilled = start if isinstance(start, Distilled) else None
        return cls(setup.task, setup.replicas, run, original, distilled, config.train.fresh)

    def __call__(self, drawn: Params) -> tuple[Params, str]:
        """Replaces the parameters that one replica has drawn, and reports it; '' where it changes nothing."""
        drawn, additions = low_rank.split(drawn)
        params, remark = self._loaded(self.task, drawn)
        remarks = [remark]
        if self.fresh:
            chosen = optimizer.matching(self.fresh, drawn)
            params = jax.tree.map(lambda fresh, ours, theirs: ours if fresh else theirs, chosen, drawn, params)
            names = [path for path, fresh in flatten_dict(chosen, sep="/").items() if fresh]
            remarks.append(f"Fresh again: {pretrained.drawn_together(names)}.")
        if self.original:
            params, remark = exchanged.start(
                self.task, self.original, self._loaded, params, self.replicas, self.distilled
            )
            remarks.append(remark)
        return low_rank.joined(params, additions), "\n".join(filter(None, remarks))

    def _loaded(self, task: Task, params: Params) -> tuple[Params, str]:
        """Loads the weights into the parameters of this task or of the one with the original model."""
        params, remark = task.pretrained(params)
        if not self.run:
            return params, remark
        params, report = self.run.load(params)
        return params, "\n".join(filter(None, [remark, report]))


def _check_fresh(config: Config, exchanged_fresh: bool, params: Params) -> None:
    pattern = config.train.fresh
    if not pattern:
        return
    if not (config.train.init_from or getattr(config.model, "pretrained", "")):
        raise UsageError(
            f"train.fresh={pattern!r} is for a model whose weights are loaded; set model.pretrained or train.init_from."
        )
    if not exchanged_fresh:
        raise UsageError("train.fresh and train.exchanged both say how arrays start; give one of them.")
    optimizer.check_matched("train.fresh", pattern, optimizer.matching(pattern, params))


def _original(config: Config, run: AnotherRun | None) -> TransformerConfig:
    """Finds the config of the model whose weights are loaded, which differs in mechanisms alone."""
    model, asked = config.model, f"train.exchanged={config.train.exchanged!r} is for layers"
    if not (run or model.pretrained):
        raise UsageError(f"{asked} of a model whose weights are loaded; set model.pretrained or train.init_from.")
    there = run.config.model if run else pretrained.original(model.pretrained, model)
    original = exchange.same_but_mechanisms(model, there)
    if not exchange.exchanged(model, original):
        raise UsageError(f"{asked} with another mechanism than the loaded model's, and there is none; set it to fresh.")
    return original
