"""The pure step: accumulation, averages and bookkeeping agree with arithmetic by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.train import small_tasks
from train.optimizer import Rates
from train.step import Step

BATCH = {
    "x": jax.random.normal(jax.random.key(0), (12, 3)),
    "y": jax.random.normal(jax.random.key(1), (12,)),
    "weight": jnp.array([1, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0], jnp.float32),  # of three parts, the last has none
}


KEY = jax.random.key(0)


def squares(params, batch, key):
    errors = (batch["x"] @ params["w"] - batch["y"]) ** 2
    return {"loss": jnp.sum(errors * batch["weight"]), "weight": jnp.sum(batch["weight"])}


RATES = Rates(0.1, 0, 1)


def step_of(accumulate=1, ema=0.0, loss=squares):
    return Step(loss, optax.identity(), lambda rates, step: rates.peak, accumulate, ema)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_ragged_parts_equal_the_whole_batch(accumulate):
    one = step_of(accumulate)
    state, report = jax.jit(one)(one.init({"w": jnp.ones(3)}), BATCH, KEY, RATES)
    real = np.asarray(BATCH["weight"]) == 1
    x, y = np.asarray(BATCH["x"])[real], np.asarray(BATCH["y"])[real]
    gradient = 2 * x.T @ (x @ np.ones(3) - y) / real.sum()
    chex.assert_trees_all_close(state.params["w"], 1 - 0.1 * gradient, atol=1e-5)
    np.testing.assert_allclose(report["gradient_norm"], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(report["sums"]["loss"], ((x @ np.ones(3) - y) ** 2).sum(), rtol=1e-5)
    assert report["sums"]["weight"] == real.sum()


INDEXER = "deepseek_sparse(heads=2, width=8, top=4)"


@pytest.mark.more
def test_the_loss_of_layers_trains_what_the_loss_of_the_task_does_not(tmp_path):
    """It is reported apart from the task's loss, and evaluation does not compute it."""
    task = small_tasks.task_of(small_tasks.config_of("gpt_pydoc", tmp_path, model__attention=INDEXER))
    params, batch = small_tasks.params_of(task), small_tasks.batch_of(task)
    gradient, sums = jax.jit(step_of(loss=task.loss)._gradient)(params, batch, KEY)
    of_task = jax.jit(jax.grad(lambda params: task.loss(params, batch, KEY)["loss"]))(params)
    for (path, both), alone in zip(jax.tree.leaves_with_path(gradient), jax.tree.leaves(of_task), strict=True):
        if "index_" in jax.tree_util.keystr(path):
            assert np.any(both)
            assert not np.any(alone)
        else:
            np.testing.assert_allclose(both, alone, rtol=1e-5, atol=1e-6)
    assert sums["own_loss"] > 0
    assert "own_loss" not in task.loss(params, batch, None)


def test_randomness_differs_by_step_and_part_and_by_nothing_else():
    def noise(params, batch, key):
        return {"loss": jax.random.uniform(key) + 0 * params["w"].sum(), "weight": jnp.ones(())}

    one, two = step_of(loss=noise), step_of(2, loss=noise)
    state = one.init({"w": jnp.ones(3)})
    losses = [float(one(state.replace(step=jnp.array(s)), BATCH, KEY, RATES)[1]["sums"]["loss"]) for s in (0, 1, 0)]
    assert losses[0] != losses[1]
    assert losses[0] == losses[2]
    parts = float(two(state, BATCH, KEY, RATES)[1]["sums"]["loss"])
    assert parts != pytest.approx(2 * losses[0])


def test_moving_average_is_what_is_evaluated():
    one = step_of(ema=0.75)
    state = one.init({"w": jnp.ones(3)})
    expected = np.ones(3)
    for _ in range(3):
        state, _ = one(state, BATCH, KEY, RATES)
        expected = 0.75 * expected + 0.25 * np.asarray(state.params["w"])
    chex.assert_trees_all_close(state.averaged()["w"], expected, atol=1e-6)
    plain = step_of()
    chex.assert_trees_all_equal(plain.init({"w": jnp.full(3, 2.0)}).averaged(), {"w": jnp.full(3, 2.0)})


@pytest.mark.parametrize("bad", ["loss", "gradient", "dead"])
def test_a_state_stays_as_it_is_where_the_step_cannot_be_taken(bad):
    one = step_of(ema=0.5, loss={"gradient": steep}.get(bad, squares))
    params = {"w": jnp.zeros(3) if bad == "gradient" else jnp.ones(3)}
    batch = BATCH | ({"x": BATCH["x"].at[0].set(jnp.inf)} if bad == "loss" else {})
    state = one.init(params)
    state = state.replace(alive=jnp.array(bad != "dead"))
    after, report = jax.jit(one)(state, batch, KEY, RATES)
    assert not report["taken"]
    assert not after.alive
    chex.assert_trees_all_equal(after.replace(alive=state.alive), state)


def steep(params, batch, key):
    """Computes a finite loss whose gradient at 0 is not finite."""
    return {"loss": jnp.sum(jnp.sqrt(params["w"])), "weight": jnp.ones(())}
