"""The initial parameters of a run: drawn, published or another run's, with layers exchanged."""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import NamedSharding, PartitionSpec

from attention.errors import UsageError, listed
from models.files import at_home
from models.layers.multi_head import MultiHeadAttention
from models.published import pretrained
from models.surgery import exchange, low_rank
from models.surgery.exchange import Distilled, Fresh
from models.surgery.like import like
from models.transformer import TransformerConfig
from train import optimizer
from train.config.schema import Config
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.run import workdir
from train.run.checkpoints import Checkpoints
from train.setup import Setup
from train.state import Params
from train.step import Batch
from train.tasks import Task

_NAMED = 5  # parameters that a message names at most
Shapes = Mapping[str, tuple[int, ...]]
Layers = Mapping[str, MultiHeadAttention]
Errors = dict[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class AnotherRun:
    """A run of one replica, from which another run takes its parameters."""

    name: str  # as `train.init_from` has it
    place: Path
    config: Config

    @classmethod
    def of(cls, name: str, files: Mapping[str, str]) -> "AnotherRun":
        """Finds a run; tokenisers that it keeps must equal those in `files`, the texts that the new run keeps."""
        place = at_home(name)
        config = workdir.load_config(place)
        if config.train.together > 1:
            raise UsageError(
                f"train.init_from={name!r} is a run of {config.train.together} replicas; give a run of one replica."
            )
        for file, text in files.items():
            if file.endswith("tokeniser.json") and (place / file).exists() and workdir.read_file(place, file) != text:
                raise UsageError(
                    f"train.init_from={name!r} has learned other tokens ({file} differs); set its tokeniser, such as "
                    f"data.tokeniser='file:{place / file}'."
                )
        return cls(name, place, config)

    def load(self, params: Params) -> tuple[Params, str]:
        """Replaces initial parameters by those of the same name and shape at its best or last step; adds a report.

        Keys and values of another number of heads are repeated or averaged; see `models.surgery.exchange.regrouped`.
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
        report = pretrained.LoadReport(
            f"step {step} of {self.name}", tuple(fitting), (), left, new, regrouped=regrouped
        )
        differ = [f"{path} is {there[path]} there and {fresh[path].shape} here" for path in new if path in there]
        shapes = f"\nNew, since their shapes differ: {listed(differ, _NAMED)}." if differ else ""
        return unflatten_dict(fresh | loaded, sep="/"), f"{report}{shapes}"

    def _fitting(self, fresh: Mapping[str, jax.Array], there: Shapes) -> list[str]:
        """Lists the paths whose shapes are equal, or differ only in the number of heads of keys and values."""
        fitting = sorted(
            path
            for path, value in fresh.items()
            if there.get(path) == value.shape or exchange.regroups(path, there.get(path, ()), value.shape)
        )
        if not fitting:
            raise UsageError(
                f"train.init_from={self.name!r} has no parameter with the name and shape of one here: it has "
                f"{', '.join(list(there)[:_NAMED])} and so on; give a run of a model like this one."
            )
        return fitting


def _abstract(value: jax.Array, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    """Describes the array to load in place of a value, with its sharding if the shapes are equal, else unsplit."""
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
    original: TransformerConfig | None  # the config of the loaded weights, if exchanged layers do not start fresh
    distilled: Distilled | None  # how exchanged layers are distilled, if they are
    fresh: str  # the pattern of parameters that keep their drawn values

    @classmethod
    def of(cls, setup: Setup) -> "Initial":
        """Finds what a config asks for; refuses what is missing or contradictory."""
        config, start = setup.config, exchange.parse(setup.config.train.exchanged)
        run = AnotherRun.of(config.source, setup.task.files()) if config.source else None
        original = None if start == Fresh() else _original(config, run)
        _check_fresh(config, start == Fresh(), setup.shapes.params)
        distilled = start if isinstance(start, Distilled) else None
        return cls(setup.task, setup.replicas, run, original, distilled, config.train.fresh)

    def __call__(self, drawn: Params) -> tuple[Params, str]:
        """Replaces the parameters that one replica has drawn; adds a report, '' if nothing changes."""
        drawn, additions = low_rank.split(drawn)
        params, remark = self._loaded(self.task, drawn)
        remarks = [remark]
        if self.fresh:
            chosen = optimizer.matching(self.fresh, drawn)
            params = jax.tree.map(lambda fresh, ours, theirs: ours if fresh else theirs, chosen, drawn, params)
            names = [path for path, fresh in flatten_dict(chosen, sep="/").items() if fresh]
            remarks.append(f"Fresh again: {pretrained.summarised(names)}.")
        if self.original:
            params, exchanged = self._exchanged(params)
            remarks += exchanged
        return low_rank.join(params, additions), "\n".join(filter(None, remarks))

    def _loaded(self, task: Task, params: Params) -> tuple[Params, str]:
        """Loads the weights into parameters of the task, or of the task with the original model."""
        params, remark = task.pretrained(params)
        if not self.run:
            return params, remark
        params, report = self.run.load(params)
        return params, "\n".join(filter(None, [remark, report]))

    def _exchanged(self, params: Params) -> tuple[Params, list[str]]:
        """Sets exchanged layers to resemble the original's, see `models.surgery.like`, and distills them if asked."""
        if jax.process_count() > 1:
            raise UsageError("train.exchanged needs one process; prepare the start with one, and give it as init_from.")
        task, original = self.task, self.original
        teacher = task.with_model(original.build(*task.sizes, dtype=task.model.dtype))
        shapes = jax.eval_shape(teacher.init, jax.random.key(0))
        places = sharding.state_shardings(shapes, self.replicas.mesh)
        before, _ = self._loaded(teacher, jax.jit(teacher.init, out_shardings=places)(jax.random.key(0)))
        params, alike = like(task.model.config, params, original, before)
        remarks = [f"Set to be like the layers before: {pretrained.summarised(alike)}."] if alike else []
        if self.distilled:
            params, remark = self._distilled(teacher, before, params)
            remarks.append(remark)
        return params, remarks

    def _distilled(self, teacher: Task, before: Params, params: Params) -> tuple[Params, str]:
        """Trains each exchanged layer alone to reproduce the original layer's outputs for the same inputs.

        The loss is the sum over layers of the squared error relative to the output's square. All arrays of these layers
        are trained, even those that were carried over. The report has each layer's error on a batch of validation data,
        before and after.
        """
        task, replicas, steps = self.task, self.replicas, self.distilled.steps
        layers = exchange.exchanged(task.model.config, self.original)
        students = _layers_of(task, layers)
        adam = optax.adam(optax.cosine_decay_schedule(self.distilled.learning_rate, steps))

        @jax.jit
        def measure(trained: Params, before: Params, batch: Batch) -> Errors:
            return errors(students, trained, teacher, before, batch)

        @jax.jit
        def step(trained: Params, state: optax.OptState, before: Params, batch: Batch) -> tuple[Params, optax.OptState]:
            gradient = jax.grad(lambda trained: sum(measure(trained, before, batch).values()))(trained)
            updates, state = adam.update(gradient, state, trained)
            return optax.apply_updates(trained, updates), state

        with contextlib.closing(task.eval_batches("validation", 0, 1)) as batches:
            unseen = sharding.to_devices(next(batches), replicas.mesh)
        trained = {path: functools.reduce(operator.getitem, path.split("/"), params) for path in layers}
        state, first = adam.init(trained), measure(trained, before, unseen)
        with contextlib.closing(task.train_batches(0, 1)) as batches:
            for _ in range(steps):
                trained, state = step(trained, state, before, replicas.to_devices(next(batches), stacked=False))
        last = measure(trained, before, unseen)
        changes = ", ".join(f"{path} {float(first[path]):.3g} -> {float(last[path]):.3g}" for path in layers)
        arrays = {f"{path}/{name}": x for path, of in trained.items() for name, x in flatten_dict(of, sep="/").items()}
        params = unflatten_dict(flatten_dict(params, sep="/") | arrays, sep="/")
        return params, f"Distilled in {steps} steps; squared error relative to the output's square: {changes}."


def _check_fresh(config: Config, exchanged_fresh: bool, params: Params) -> None:
    pattern = config.train.fresh
    if not pattern:
        return
    if not (config.train.init_from or config.model.pretrained):
        raise UsageError(
            f"train.fresh={pattern!r} is for a model whose weights are loaded; set model.pretrained or train.init_from."
        )
    if not exchanged_fresh:
        raise UsageError("train.fresh and train.exchanged both say how arrays start; give only one of them.")
    optimizer.check_matched("train.fresh", pattern, optimizer.matching(pattern, params))


def _original(config: Config, run: AnotherRun | None) -> TransformerConfig:
    """Finds the config of the model whose weights are loaded; it may differ only in mechanisms."""
    model, asked = config.model, f"train.exchanged={config.train.exchanged!r} is for layers"
    if not (run or model.pretrained):
        raise UsageError(f"{asked} of a model whose weights are loaded; set model.pretrained or train.init_from.")
    there = run.config.model if run else pretrained.original(model.pretrained, model)
    original = exchange.same_but_mechanisms(model, there)
    if not exchange.exchanged(model, original):
        raise UsageError(f"{asked} with another mechanism than the loaded model's, and there is none; set it to fresh.")
    return original


def errors(students: Layers, trained: Params, teacher: Task, before: Params, batch: Batch) -> Errors:
    """Measures each layer's squared error, relative to the square of the original layer's output.

    The exchanged layers, `students`, have the parameters `trained`, by path. Their inputs and targets are those of the
    layers in the original model, the `teacher`'s, with its loaded parameters `before`.
    """
    found: Errors = {}

    def watch(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> jax.Array:
        wanted = call(*args, **kwargs)
        path = "/".join(context.module.path)
        if path in students and _is_layer(context):
            given = students[path].apply({"params": trained[path]}, *args, **kwargs)
            difference, wanted32 = (x.astype(jnp.float32) for x in (given - wanted, wanted))
            found[path] = jnp.mean(difference**2) / jnp.mean(wanted32**2)
        return wanted

    with nn.intercept_methods(watch):
        teacher.loss(before, batch, None)
    return found


def _layers_of(task: Task, paths: tuple[str, ...]) -> Layers:
    """Finds a model's attention layers at these paths, unbound."""
    found = {}
    config = task.model.config
    plain = task.with_model(exchange.same_but_mechanisms(config, config).build(*task.sizes, dtype=task.model.dtype))

    def watch(call: Callable, args: tuple, kwargs: dict, context: nn.module.InterceptorContext) -> jax.Array:
        path = "/".join(context.module.path)
        if path in paths and _is_layer(context):
            found[path] = context.module.clone(parent=None, name=None)
        return call(*args, **kwargs)

    with nn.intercept_methods(watch):
        jax.eval_shape(plain.init, jax.random.key(0))
    return found


def _is_layer(context: nn.module.InterceptorContext) -> bool:
    return isinstance(context.module, MultiHeadAttention) and context.method_name == "__call__"
