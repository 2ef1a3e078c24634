"""Steps compute in bfloat16 and keep float32, and both precisions learn the same."""

import statistics

import jax
import jax.numpy as jnp
import pytest

from studies import precision
from tests.jaxprs import equations
from tests.sizes import once
from tests.train import small_tasks
from train.optimizer import Rates
from train.step import Step

BFLOAT16, FLOAT32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
RATES = Rates(jnp.float32(1e-3), 2, 1000)


def step_of(config):
    """Makes the task's step, the shapes of its state, and a batch."""
    task = small_tasks.task_of(config)
    step = Step.of(config, task.loss)
    state = jax.eval_shape(lambda key: step.init(task.init(key)), jax.random.key(0))
    return step, state, small_tasks.batch_of(task)


def floats(tree):
    """Lists the dtypes of the floating-point arrays in a tree."""
    return {leaf.dtype for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.floating)}


def operands(jaxpr, primitive):
    """Lists the dtypes of a primitive's operands."""
    found = (eqn for eqn in equations(jaxpr) if eqn.primitive.name == primitive)
    return {tuple(value.aval.dtype for value in eqn.invars) for eqn in found}


@pytest.mark.parametrize("name", once(small_tasks.ALL, ["vit_digits"]))
def test_bfloat16_computes_and_float32_keeps(name, tmp_path):
    config = small_tasks.config_of(name, tmp_path, train__precision="bfloat16", train__ema=0.9)
    one, state, batch = step_of(config)
    step, (after, report) = jax.make_jaxpr(one, return_shape=True)(state, batch, jax.random.key(0), RATES)
    assert floats(state) == floats(after) == floats(report) == {FLOAT32}
    # A gradient of scores, in float32, meets keys in bfloat16; no two float32 matrices are multiplied, but by the MLP
    # that scores pairs.
    of_pairs = {(FLOAT32, FLOAT32)} if config.model.attention == "additive" else set()
    assert all(BFLOAT16 in pair for pair in operands(step, "dot_general") - of_pairs)
    forward = jax.make_jaxpr(one.loss)(state.params, batch, jax.random.key(0))
    assert operands(forward, "dot_general") == {(BFLOAT16, BFLOAT16)} | of_pairs
    assert operands(forward, "exp") == {(FLOAT32,)}  # softmax, of weights and of predictions
    assert operands(forward, "rsqrt") <= {(FLOAT32,)}  # LayerNorm's statistics
    assert operands(forward, "log") == {(FLOAT32,)}  # the loss


@pytest.mark.long
def test_both_precisions_reach_the_same(tmp_path):
    """Means of 3 seeds agree to 1 point of accuracy on digits and 2 % of bits per byte on the manual."""
    found = precision.measured(tmp_path, range(3))
    means = {name: {p: statistics.mean(values) for p, values in of.items()} for name, of in found.items()}
    digits, pydoc = means["digits"], means["pydoc"]
    assert digits["float32"] > 0.8
    assert digits["bfloat16"] == pytest.approx(digits["float32"], abs=0.01)
    assert pydoc["bfloat16"] == pytest.approx(pydoc["float32"], rel=0.02)
