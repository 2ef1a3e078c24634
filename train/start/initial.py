"""The initial parameters of a run: its model's own, published weights, or another run's, with layers exchanged."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from attention.errors import UsageError, listed
from models.files import at_home
from models.published import pretrained
from models.published.pretrained import LoadReport
from models.surgery import exchange, low_rank, starts
from models.surgery.starts import Distilled, Fresh
from models.transformer import TransformerConfig
from train import loading, optimizer
from train.config.schema import Config
from train.mesh.replicas import Replicas
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.setup import Setup
from train.start import exchanged
from train.state import Params
from train.tasks import Task

_NAMED = 5  # parameters of other shapes that a remark names
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class AnotherRun:
    """A run of one replica, whose parameters can be taken; `name` is what `train.init_from` calls its `place`."""

    name: str
    place: Path
    config: Config

    @classmethod
    def of(cls, name: str, files: Mapping[str, str]) -> "AnotherRun":
        """Finds a run; its tokenisers must be among the texts that this run keeps, `files`, where it has them."""
        place = at_home(name)
        config = loading.validate(workdir.read_config(place))
        if config.train.together > 1:
            raise UsageError(
                f"train.init_from={name!r} is a run of {config.train.together} replicas; give a run of one."
            )
        for file, text in files.items():
            if file.endswith("tokeniser.json") and (place / file).exists() and workdir.read_file(place, file) != text:
                raise UsageError(
                    f"train.init_from={name!r} has learned other tokens ({file} differs); set its tokeniser, such as "
                    f"data.tokeniser='file:{place / file}'."
                )
        return cls(name, place, config)

    def load(self, params: Params) -> tuple[Params, str]:
        """Replaces initial parameters by those of its best step, or its last, that have their name and shape.

        Keys and values of another number of heads are repeated or averaged; see `models.surgery.exchange.regrouped`.
        The parameters come with a report.
        """
        fresh = flatten_dict(params, sep="/")
        with Checkpoints(self.place, self.config.train.keep) as checkpoints:
            step = checkpoints.choose("best" if (self.place / "result.json").is_file() else "last", 0)
            there = checkpoints.shapes(step)
            fitting = self._fitting(fresh, there)
            additions = {path: path.rpartition("/")[0] + "/kernel" for path in there if low_rank.is_addition(path)}
            needed = {path: path for path in fitting} | {path: k for path, k in additions.items() if k in fitting}
            wanted = {path: _abstract(fresh[original], there[path]) for path, original in needed.items()}
            loaded = checkpoints.load_params(step, unflatten_dict(wanted, sep="/"), averaged=self.config.train.ema > 0)
        lora = low_rank.parse(self.config.optimizer.lora)
        loaded = flatten_dict(lora.merged(loaded) if lora else loaded, sep="/")
        regrouped = tuple(path for path in fitting if there[path] != fresh[path].shape)
        for path in regrouped:
            loaded[path] = jax.device_put(exchange.regrouped(loaded[path], fresh[path].shape[-2]), fresh[path].sharding)
        new = tuple(sorted(fresh.keys() - fitting))
        left = tuple(sorted(there.keys() - fitting - additions.keys()))
        report = LoadReport(f"step {step} of {self.name}", tuple(fitting), (), left, new, regrouped=regrouped)
        differ = [f"{path} is {there[path]} there and {fresh[path].shape} here" for path in new if path in there]
        shapes = f"\nOf other shapes, so new: {listed(differ, _NAMED)}." if differ else ""
        return unflatten_dict(fresh | loaded, sep="/"), f"{report}{shapes}"

    def _fitting(self, fresh: Mapping[str, jax.Array], there: Shapes) -> list[str]:
        """Lists the paths whose shapes are the same, or differ in the number of heads that keys and values have."""
        fitting = sorted(
            path
            for path, value in fresh.items()
            if there.get(path) == value.shape or exchange.regroups(path, there.get(path, ()), value.shape)
        )
        if not fitting:
            raise UsageError(
                f"train.init_from={self.name!r} has no parameter of the name and shape of one here: it has "
                f"{', '.join(list(there)[:_NAMED])} and so on; give a run of a model such as this."
            )
        return fitting


def _abstract(value: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Describes what is loaded for an initial value: an array of its sharding, or a whole one of another shape."""
    split = value.sharding
    if shape != value.shape and isinstance(split, NamedSharding):
        split = NamedSharding(split.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=split)


@dataclasses.dataclass(frozen=True)
class Initial:
    """What replaces the parameters that a model draws; found and checked before anything is computed."""

    task: Task
    replicas: Replicas
    run: AnotherRun | None  # whose parameters are taken
    original: TransformerConfig | None  # of the model whose weights are loaded, where exchanged layers are not fresh
    distilled: Distilled | None  # how these layers are
    fresh: str  # the pattern of parameters that keep what was drawn

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
