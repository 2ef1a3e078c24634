"""The first values of layers that have another mechanism than the model whose weights are loaded."""

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict

from attention.errors import UsageError
from models.layers.multi_head import MultiHeadAttention
from models.published.pretrained import drawn_together
from models.surgery import exchange
from models.surgery.like import like
from models.surgery.starts import Distilled
from models.transformer import TransformerConfig
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.state import Params
from train.step import Batch
from train.tasks import Task

Layers = Mapping[str, MultiHeadAttention]
Errors = dict[str, jax.Array]


def start(
    task: Task,
    original: TransformerConfig,
    load: Callable[[Task, Params], tuple[Params, str]],
    params: Params,
    replicas: Replicas,
    distilled: Distilled | None,
) -> tuple[Params, str]:
    """Sets the layers that are exchanged, as `models.surgery.like` does, and distills them if that is asked for.

    The weights of the `original` model, which is the task's in all but mechanisms, are put into initial parameters of a
    task by `load`, as they were into `params`. The parameters come with a report.
    """
    if jax.process_count() > 1:
        raise UsageError("train.exchanged needs one process; prepare the start with one, and give it as init_from.")
    config = task.model.config
    teacher = task.with_model(original.build(*task.sizes, dtype=task.model.dtype))
    shapes = jax.eval_shape(teacher.init, jax.random.key(0))
    places = sharding.state_shardings(shapes, replicas.mesh)
    before, _ = load(teacher, jax.jit(teacher.init, out_shardings=places)(jax.random.key(0)))
    params, alike = like(config, params, original, before)
    remarks = [f"Set to be like the layers before: {drawn_together(alike)}."] if alike else []
    if distilled:
        layers = exchange.exchanged(config, original)
        params, remark = distill(task, teacher, before, params, layers, replicas, distilled)
        remarks.append(remark)
    return params, "\n".join(remarks)


def distill(
    task: Task,
    teacher: Task,
    before: Params,
    params: Params,
    layers: tuple[str, ...],
    replicas: Replicas,
    distilled: Distilled,
) -> tuple[Params, str]:
    """Trains each exchanged layer alone to give what the layer before gives for the same inputs.

    The loss is the sum over layers of the mean squared error, relative to the mean square of the layer's output. All
    arrays of these layers are trained, those that were carried over too. The report has the error of each layer on a
    batch of validation data, before and after.
    """
    students = _layers_of(task, layers)
    schedule = optax.cosine_decay_schedule(distilled.learning_rate, distilled.steps)
    optimizer = optax.adam(schedule)

    @jax.jit
    def measure(trained: Params, before: Params, batch: Batch) -> Errors:
        return errors(students, trained, teacher, before, batch)

    @jax.jit
    def step(trained: Params, state: optax.OptState, before: Params, batch: Batch) -> tuple[Params, optax.OptState]:
        gradient = jax.grad(lambda trained: sum(errors(students, trained, teacher, before, batch).values()))(trained)
        updates, state = optimizer.update(gradient, state, trained)
        return optax.apply_updates(trained, updates), state

    process = jax.process_index(), jax.process_count()
    with contextlib.closing(task.eval_batches("validation", *process)) as batches:
        unseen = sharding.to_devices(next(batches), replicas.mesh)
    trained = {path: functools.reduce(operator.getitem, path.split("/"), params) for path in layers}
    state, first = optimizer.init(trained), measure(trained, before, unseen)
    with contextlib.closing(task.train_batches(*process)) as batches:
        for _ in range(distilled.steps):
            trained, state = step(trained, state, before, replicas.to_devices(next(batches), stacked=False))
    last = measure(trained, before, unseen)
    changes = ", ".join(f"{path} {float(first[path]):.3g} -> {float(last[path]):.3g}" for path in layers)
    arrays = {f"{path}/{name}": x for path, of in trained.items() for name, x in flatten_dict(of, sep="/").items()}
    params = unflatten_dict(flatten_dict(params, sep="/") | arrays, sep="/")
    return params, f"Distilled in {distilled.steps} steps; squared error relative to the output's square: {changes}."


def errors(students: Layers, trained: Params, teacher: Task, before: Params, batch: Batch) -> Errors:
    """Measures each layer's squared error relative to the square of the output of the layer before.

    The exchanged layers `students` have the parameters `trained`, by their paths. The `teacher` is the task with the
    model whose weights were loaded, `before`, where each layer gets its inputs and its target.
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
    """Finds the attention layers of a task's model at these paths, unbound."""
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
