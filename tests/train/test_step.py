"""The pure step: accumulation, averages and bookkeeping against arithmetic by hand."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.sizes import once
from tests.train import small_tasks
from train.step import Trainer

BATCH = {
    "x": jax.random.normal(jax.random.key(0), (12, 3)),
    "y": jax.random.normal(jax.random.key(1), (12,)),
    "weight": jnp.array([1, 1, 0, 1, 0, 0, 0, 1, 1, 0, 1, 0], jnp.float32),
}


KEY = jax.random.key(0)


def squares(params, batch, key):
    errors = (batch["x"] @ params["w"] - batch["y"]) ** 2
    return {"loss": jnp.sum(errors * batch["weight"]), "weight": jnp.sum(batch["weight"])}


def trainer(accumulate=1, ema=0.0, loss=squares):
    return Trainer(loss, optax.sgd(0.1), optax.constant_schedule(0.1), accumulate, ema)


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4])
def test_ragged_parts_equal_the_whole_batch(accumulate):
    one = trainer(accumulate)
    state, report = jax.jit(one.train_step)(one.init({"w": jnp.ones(3)}), BATCH, KEY)
    real = np.asarray(BATCH["weight"]) == 1
    x, y = np.asarray(BATCH["x"])[real], np.asarray(BATCH["y"])[real]
    gradient = 2 * x.T @ (x @ np.ones(3) - y) / real.sum()
    chex.assert_trees_all_close(state.params["w"], 1 - 0.1 * gradient, atol=1e-5)
    np.testing.assert_allclose(report["gradient_norm"], np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(report["sums"]["loss"], ((x @ np.ones(3) - y) ** 2).sum(), rtol=1e-5)
    assert report["sums"]["weight"] == real.sum()


@pytest.mark.parametrize("name", once(["vit_digits", "classify_imdb", "gpt_pydoc", "mlm_pydoc"], ["mlm_pydoc"]))
def test_the_gradient_of_four_parts_is_that_of_the_whole_batch(name, tmp_path):
    """Of the tasks' own losses: parts whose weights differ, one of which has none at all."""
    dropout = ("embedding_dropout", "dropout", "attention_dropout")
    changes = {f"model__{rate}": 0.0 for rate in dropout}
    task = small_tasks.task_of(small_tasks.config_of(name, tmp_path, **changes))
    params, batch = small_tasks.params_of(task), small_tasks.batch_of(task)
    weight = np.array(batch.get("weight", jnp.ones(8)))
    weight[1::4] = 0.0
    weight[2] = 0.0
    batch["weight"] = jnp.asarray(weight)
    one, four = (trainer(parts, loss=task.loss) for parts in (1, 4))
    parts = [weight[part::4].sum() for part in range(4)]
    assert parts[1] == 0 < min(parts[0], parts[2], parts[3])
    assert len({float(part) for part in parts}) > 2
    expected, found = (jax.jit(each._gradient)(params, batch, jax.random.key(0)) for each in (one, four))
    chex.assert_trees_all_close(found[1], expected[1], rtol=1e-6)
    apart = optax.tree.norm(jax.tree.map(jnp.subtract, found[0], expected[0]))
    assert apart < 1e-6 * optax.tree.norm(expected[0])


def test_randomness_differs_by_step_and_part_and_by_nothing_else():
    def noise(params, batch, key):
        return {"loss": jax.random.uniform(key) + 0 * params["w"].sum(), "weight": jnp.ones(())}

    one, two = trainer(loss=noise), trainer(2, loss=noise)
    state = one.init({"w": jnp.ones(3)})
    losses = [float(one.train_step(state.replace(step=jnp.array(s)), BATCH, KEY)[1]["sums"]["loss"]) for s in (0, 1, 0)]
    assert losses[0] != losses[1]
    assert losses[0] == losses[2]
    parts = float(two.train_step(state, BATCH, KEY)[1]["sums"]["loss"])
    assert parts != pytest.approx(2 * losses[0])


def test_moving_average_is_what_is_evaluated():
    one = trainer(ema=0.75)
    state = one.init({"w": jnp.ones(3)})
    expected = np.ones(3)
    for _ in range(3):
        state, _ = one.train_step(state, BATCH, KEY)
        expected = 0.75 * expected + 0.25 * np.asarray(state.params["w"])
    chex.assert_trees_all_close(state.averaged()["w"], expected, atol=1e-6)
    plain = trainer()
    chex.assert_trees_all_equal(plain.init({"w": jnp.full(3, 2.0)}).averaged(), {"w": jnp.full(3, 2.0)})


def test_the_step_compiles_once():
    one = trainer(3, ema=0.5)
    step = jax.jit(chex.assert_max_traces(one.train_step, n=1))
    chex.clear_trace_counter()
    state = one.init({"w": jnp.ones(3)})
    for _ in range(3):
        state, _ = step(state, BATCH, KEY)
    assert int(state.step) == 3
