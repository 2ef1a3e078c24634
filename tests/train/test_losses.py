"""Losses in chunks of tokens have the numbers and gradients of all logits at once, which never exist."""

import functools
import math

import chex
import jax
import jax.numpy as jnp
import pytest

from models.layers.output import Output
from tests.jaxprs import equations
from tests.sizes import once
from tests.train import small_tasks
from train import losses
from train.run.progress import averages

B, T, D, V = 4, 7, 8, 50
KEYS = jax.random.split(jax.random.key(0), 5)
LABELS = jax.random.randint(KEYS[0], (B, T), 0, V)
WEIGHT = jax.random.uniform(KEYS[1], (B, T))


def output(transposed, bias):
    kernel = jax.random.normal(KEYS[2], (V, D) if transposed else (D, V))
    hidden = jax.random.normal(KEYS[3], (B, T, D))
    return Output(hidden, kernel, jax.random.normal(KEYS[4], (V,)) if bias else None, transposed)


def sums(chunk, smoothing=0.0):
    """Makes a function from an output to a step's loss and sums."""

    def of(output):
        measure = functools.partial(losses.of_classes, smoothing=smoothing)
        found = losses.of_examples(losses.of_tokens(measure, output, LABELS, chunk), WEIGHT)
        return jnp.sum(found["loss"]), found

    return jax.jit(jax.value_and_grad(of, has_aux=True))


@pytest.mark.parametrize(("transposed", "bias", "smoothing"), [(False, True, 0.1), (True, False, 0.0)])
def test_chunks_change_nothing(transposed, bias, smoothing):
    (_, expected), gradient = sums(0, smoothing)(output(transposed, bias))
    for chunk in (3, 7, 100):  # the last one ragged; as long as the sequence; longer
        (_, found), again = sums(chunk, smoothing)(output(transposed, bias))
        chex.assert_trees_all_close(found, expected, rtol=1e-6)
        chex.assert_trees_all_close(again, gradient, rtol=1e-5, atol=1e-6)


def test_the_logits_of_all_tokens_are_never_there():
    largest = lambda jaxpr: max(math.prod(v.aval.shape) for e in equations(jaxpr) for v in e.outvars)  # noqa: E731
    found = {chunk: largest(jax.make_jaxpr(sums(chunk))(output(True, True))) for chunk in (0, 2)}
    assert found == {0: B * T * V, 2: max(B * 2 * V, V * D)}


@pytest.mark.parametrize("name", once(["gpt_pydoc", "mlm_pydoc", "seq2seq_dates"], ["seq2seq_dates"]))
def test_every_task_of_tokens_takes_chunks(name, tmp_path):
    whole = small_tasks.task_of(small_tasks.config_of(name, tmp_path, train__label_smoothing=0.1))
    config = small_tasks.config_of(name, tmp_path, train__label_smoothing=0.1, train__loss_chunk=5)
    params, batch = small_tasks.params_of(whole), small_tasks.batch_of(whole)
    key = jax.random.key(0)
    expected, found = (
        jax.jit(lambda p, task=task: task.loss(p, batch, key))(params) for task in (whole, small_tasks.task_of(config))
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-6)
    assert whole.metrics("train", averages(found))["perplexity"] == pytest.approx(
        math.exp(found["plain_loss"] / found["weight"]), rel=1e-5
    )


ON_MESH = """
import re
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from models.layers.output import Output
from train import losses
from train.mesh.sharding import AXES

B, T, D, V = 24, 10, 16, 64
def loss(output, labels):
    return losses.of_examples(losses.of_tokens(losses.of_classes, output, labels, 4), jnp.ones((B, T)))["loss"].sum()
mesh = jax.make_mesh((2, 2, 2), AXES, axis_types=(AxisType.Auto,) * 3)
with jax.set_mesh(mesh):
    place = lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec))
    batch = P(("data", "fsdp"))
    output = Output(place(jnp.ones((B, T, D)), batch), place(jnp.ones((D, V)), P("fsdp")))
    labels = place(jnp.zeros((B, T), int), batch)
    compiled = jax.jit(jax.value_and_grad(loss)).lower(output, labels).compile()
gathered = re.findall(r"= .*?\\[([\\d,]*)\\][^=]* all-gather", compiled.as_text())
assert gathered and not any("24" in shape.split(",") for shape in gathered), gathered
"""


@pytest.mark.more
def test_chunks_leave_the_batch_split_over_devices(run_python):
    """On a mesh of 2 x 2 x 2, parameters are gathered, but nothing that has the whole batch."""
    run_python("-c", ON_MESH, devices=8)
