"""Schedules follow their formulas, and optimizers take hand-computed steps."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from attention import UsageError
from configs import defaults as configs
from models.masked_lm import MaskedLM, MaskedLMConfig
from train import loading
from train.config.optimizer import OptimizerConfig
from train.config.timetable import Timetable
from train.optimizer import DECAYED, Rates, learning_rate, matching, optimizer
from train.step import Step

CONFIG = OptimizerConfig(
    name="sgd", learning_rate=0.1, schedule="constant", warmup="0 steps", weight_decay=0.0, clip=0.0, beta1=0.0
)
PARAMS = {
    "block_0": {"attention": {"query": {"kernel": jnp.ones((2, 2, 1)), "bias": jnp.ones((2, 1))}}},
    "positions": {"table": jnp.ones((1, 3, 2))},
}


def after_one_step(gradient=0.5, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    transform = optimizer(config)
    gradients = jax.tree.map(lambda x: jnp.full_like(x, gradient), PARAMS)
    updates, _ = transform.update(gradients, transform.init(PARAMS), PARAMS)
    updates = jax.tree.map(lambda update: -config.learning_rate * float(update.ravel()[0]), updates)
    query = updates["block_0"]["attention"]["query"]
    return query["kernel"], query["bias"], updates["positions"]["table"]


def rates_of(schedule, warmup, total):
    """Computes the learning rate of each step with the compiled schedule."""
    config = dataclasses.replace(CONFIG, schedule=schedule, end=0.2)
    steps = jnp.arange(total + 1)
    return np.asarray(jax.vmap(lambda step: learning_rate(config, Rates(0.1, warmup, total), step))(steps))


@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize(
    ("name", "by_optax"),
    [
        ("constant", lambda rest: optax.constant_schedule(0.1)),
        ("linear", lambda rest: optax.linear_schedule(0.1, 0.02, rest)),
        ("cosine", lambda rest: optax.cosine_decay_schedule(0.1, rest, alpha=0.2)),
    ],
)
def test_schedules_are_optaxs(name, by_optax, warmup):
    schedules = [optax.linear_schedule(0.0, 0.1, max(warmup, 1)), by_optax(50 - warmup)]
    theirs = optax.join_schedules(schedules, [warmup])
    np.testing.assert_allclose(rates_of(name, warmup, 50), [theirs(step) for step in range(51)], rtol=1e-5, atol=1e-8)


def test_rsqrt_is_continuous_and_halves_in_four_warmups():
    found = rates_of("rsqrt", 10, 1000)
    np.testing.assert_allclose(found[[5, 10, 40, 1000]], [0.05, 0.1, 0.05, 0.01], rtol=1e-5)


@pytest.mark.parametrize(("warmup", "total", "steps"), [(50, 50, 50), (51, 50, 5), (7, 3, 1)])
def test_a_warmup_longer_than_the_run_is_a_tenth_of_it(warmup, total, steps):
    lengths = {"optimizer.warmup": f"{warmup} steps", "train.length": f"{total} steps"}
    timetable = Timetable.of(loading.resolve("configs/vit_digits.py", lengths)[0], examples=100)
    assert (timetable.warmup, timetable.uncut_warmup) == (steps, warmup)


def test_of_robertas_tree_decay_takes_the_matrices_that_are_no_positions():
    size = {"depth": 1, "width": 8, "heads": 2, "mlp": 8, "positions": "learned"}
    model = MaskedLM(MaskedLMConfig(**configs.masked_language_modelling().model.to_dict() | size), 9, 5)
    params = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 5), jnp.int32))["params"]
    paths = jax.tree.leaves_with_path(matching(DECAYED, params))
    decayed = {jax.tree_util.keystr(path, simple=True, separator="/") for path, decays in paths if decays}
    layer = {f"attention/{name}" for name in ("query", "key", "value", "out")} | {"mlp/up", "mlp/down"}
    kernels = {f"block_0/{name}/kernel" for name in layer} | {"head/dense/kernel"}
    assert decayed == kernels | {"embed/embedding", "token_types/embedding"}


NORM = np.sqrt(12) * 0.5  # 4 + 2 + 6 numbers of 0.5


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"name": "adamw", "beta1": 0.9, "weight_decay": 0.3}, (-0.1 * 1.3, -0.1, -0.1)),  # apart from the gradient
        ({"name": "adam", "beta1": 0.9, "weight_decay": 0.3}, (-0.1, -0.1, -0.1)),  # through it
        ({"weight_decay": 0.3}, (-0.1 * (0.5 + 0.3), -0.05, -0.05)),
        ({"name": "lion", "gradient": -3.0, "beta1": 0.9}, (0.1, 0.1, 0.1)),
        ({"clip": NORM / 2}, (-0.025, -0.025, -0.025)),
        ({"clip": NORM * 2}, (-0.05, -0.05, -0.05)),
        ({"rates": (("query/kernel", 0.5), ("query", 10))}, (-0.025, -0.5, -0.05)),
        (
            {"rates": (("kernel", 0.5),), "name": "adamw", "beta1": 0.9, "weight_decay": 0.3},
            (-0.05 * 1.3, -0.1, -0.1),
        ),
    ],
)
def test_a_step_of_a_matrix_a_bias_and_positions_is_that_by_hand(changes, steps):
    assert after_one_step(**changes) == pytest.approx(steps, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "adamm"}, r"Unknown optimizer.name 'adamm'\. Did you mean 'adamw'|'adam'"),
        ({"warmup": "5"}, r"optimizer.warmup='5' is not a duration"),
        ({"freeze": "(" * 3000 + ")" * 3000}, "optimizer.freeze must be a regular expression"),
        ({"freeze": "x{99999999999}"}, r"but 'x\{99999999999\}' is none"),
        ({"rates": (("embed", float("inf")),)}, "a factor above 0, at most 1e.06, such as"),
        ({"rates": (("embed", 0.0),)}, "a factor above 0"),
        ({"rates": ("embed", 0.1)}, r"must be pairs .* but it has 'embed'"),
        ({"rates": (("(", 0.1),)}, r"optimizer.rates must be a regular expression, but '\('"),
        ({"rates": (("atention", 0.5),)}, "'atention', which matches none"),
        ({"freeze": "atention"}, "'atention', which matches none of the 3 .*'block_0/attention/query/bias'"),
        ({"freeze": "."}, r"freeze='.' matches all parameters"),
    ],
)
def test_mistakes_are_one_sentence(change, message):
    with pytest.raises(UsageError, match=message):
        optimizer(dataclasses.replace(CONFIG, **change)).init(PARAMS)


def test_frozen_parameters_have_no_moments_and_the_others_step_as_if_these_were_not_there():
    free = dataclasses.replace(CONFIG, name="adamw", weight_decay=0.3, clip=0.1)
    with_frozen, alone = optimizer(dataclasses.replace(free, freeze="attention/query")), optimizer(free)
    numbers = [sum(leaf.size for leaf in jax.tree.leaves(one.init(PARAMS))) for one in (with_frozen, alone)]
    assert numbers[1] - numbers[0] == 2 * (4 + 2)
    rest = {"positions": PARAMS["positions"]}
    updates, _ = with_frozen.update(jax.tree.map(jnp.ones_like, PARAMS), with_frozen.init(PARAMS), PARAMS)
    expected, _ = alone.update(jax.tree.map(jnp.ones_like, rest), alone.init(rest), rest)
    chex.assert_trees_all_equal(updates["positions"], expected["positions"])


def test_no_bit_of_frozen_parameters_and_of_their_average_changes():
    config = dataclasses.replace(CONFIG, freeze="positions")
    loss = lambda p, batch, key: {"loss": sum(jnp.sum(x * 0.3) for x in jax.tree.leaves(p["block_0"])), "weight": 1.0}  # noqa: E731
    step = Step(loss, optimizer(config), lambda rates, _: rates.peak, 1, 0.7, "positions")
    numbers = np.array([[[0.0, -0.0], [1e-45, 0.1], [-3.5, np.inf]]], np.float32)
    state = step.init(PARAMS | {"positions": {"table": jnp.asarray(numbers)}})
    for _ in range(3):
        state, report = step(state, {}, jax.random.key(0), Rates(0.1, 0, 10))
    for tree in (state.params, state.ema):
        assert np.asarray(tree["positions"]["table"]).tobytes() == numbers.tobytes()
    assert (state.params["block_0"]["attention"]["query"]["bias"] < 1).all()
    assert report["gradient_norm"] == pytest.approx(0.3 * np.sqrt(6))
