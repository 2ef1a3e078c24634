"""The network of convolutions: exact parameters, its shape at every stage, what its attention changes, its mesh."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from attention import UsageError
from attention.channel import Cbam, Spatial, SqueezeExcitation
from models.cnn import CNN, CNNConfig, resolve
from train.devices.sharding import parameter_spec
from train.state import count_parameters

CONFIG = CNNConfig(name="cnn", attention="none", stages=2, depth=1, width=8, groups=2, norm_epsilon=1e-6, dropout=0.0)
IMAGES = jax.random.normal(jax.random.key(0), (3, 9, 7, 3))
SPECS = ("none", "squeeze_excitation(ratio=4)", "spatial(kernel=3)", "cbam(ratio=2, kernel=5)", "none|cbam(ratio=4)")


def build(**changes):
    model = CNN(dataclasses.replace(CONFIG, **changes), classes=5, length=63)
    shapes, numbers = jax.eval_shape(model.init, jax.random.key(1), IMAGES), np.random.default_rng(0)
    return jax.jit(model.apply), jax.tree.map(lambda x: numbers.normal(0, 0.3, x.shape).astype(x.dtype), shapes)


@pytest.mark.parametrize("spec", SPECS)
def test_parameters_have_their_closed_form(spec):
    config = dataclasses.replace(CONFIG, attention=spec)
    shapes = jax.eval_shape(CNN(config, 5, 63).init, jax.random.key(0), IMAGES)
    more = {  # in each block of 8 and of 16 channels
        "none": (0, 0),
        "squeeze_excitation(ratio=4)": (2 * 8 * 2, 2 * 16 * 4),
        "spatial(kernel=3)": (18, 18),
        "cbam(ratio=2, kernel=5)": (2 * 8 * 4 + 50, 2 * 16 * 8 + 50),
        "none|cbam(ratio=4)": (0, 2 * 16 * 4 + 98),
    }[spec]
    block = lambda c: 2 * (9 * c * c + 2 * c)  # noqa: E731  convolutions and norms
    plain = 9 * 3 * 8 + block(8) + 4 * 8 * 16 + block(16) + 2 * 16 + 16 * 5 + 5
    assert count_parameters(shapes) == plain + sum(more)


def test_each_stage_has_its_attention():
    assert resolve("none|squeeze_excitation(ratio=4)", 3) == (None, SqueezeExcitation(4), SqueezeExcitation(4))
    assert resolve("spatial|cbam(kernel=3)", 2) == (Spatial(7), Cbam(16, 3))


@pytest.mark.parametrize("spec", ["squeeze_excitation(ratio=4)", "none|cbam(ratio=4)"])
def test_attention_is_on_the_residual_branch_and_zero_weights_halve_it(spec):
    """With zeros for its weights each gate is 1/2: the last convolution's weights halved give the same network."""
    apply, variables = build(attention=spec)
    params = variables["params"]
    for name in [name for name in params if "attention" in params[name]]:
        halves = 2 if "cbam" in spec else 1
        params[name] |= {"attention": jax.tree.map(np.zeros_like, params[name]["attention"])}
        params[name] |= {"conv_1": {"kernel": params[name]["conv_1"]["kernel"] * 2**halves}}
    plain, fresh = build()
    undone = {n: dict(p) for n, p in params.items()}
    for name in [name for name in params if "attention" in params[name]]:
        del undone[name]["attention"]
        undone[name] |= {"conv_1": {"kernel": params[name]["conv_1"]["kernel"] / 2**halves}}
    chex.assert_trees_all_equal_shapes(undone, fresh["params"])
    chex.assert_trees_all_close(apply({"params": params}, IMAGES), plain({"params": undone}, IMAGES), atol=1e-5)


def test_an_examples_logits_are_its_own_and_float32():
    apply, params = build()
    changed = apply(params, IMAGES.at[1:].multiply(3.0))
    chex.assert_trees_all_close(apply(params, IMAGES)[:1], changed[:1], atol=1e-5)
    model = CNN(CONFIG, 5, 63, dtype=jnp.bfloat16)
    shapes = jax.eval_shape(model.init, jax.random.key(1), IMAGES)
    assert {leaf.dtype for leaf in jax.tree.leaves(shapes)} == {jnp.dtype("float32")}
    assert jax.eval_shape(model.apply, shapes, IMAGES).dtype == jnp.float32
    assert "bf16[3,9,7,8]" in str(jax.make_jaxpr(model.apply)(shapes, IMAGES))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"attention": "squeeze_excitaton"},
            r"Unknown attention of a cnn 'squeeze_excitaton'\. Did you mean 'sq",
        ),
        ({"attention": "cbam(ratoi=4)"}, r"Unknown option of cbam 'ratoi'\. Did you mean 'ratio'"),
        ({"attention": "none(ratio=4)"}, r"Unknown option of none 'ratio'\. Valid: none"),
        ({"attention": "none|none|none"}, r"names 3 stages, but the model has 2; name at most 2"),
        ({"attention": ""}, r"A name is needed for each stage"),
        ({"attention": "cbam(ratio=16)"}, r"ratio=16 does not divide 8 channels"),
        ({"groups": 3}, r"model.groups=3 does not divide model.width=8; choose a divisor of 8"),
    ],
)
def test_mistakes_are_one_sentence(change, message):
    with pytest.raises(UsageError, match=message):
        dataclasses.replace(CONFIG, **change)


def test_convolutions_are_split_over_the_channels_they_give():
    class Mesh:
        shape = {"data": 1, "fsdp": 2, "tensor": 4}  # noqa: RUF012

    assert parameter_spec("params/block_0/conv_0/kernel", (3, 3, 8, 8), Mesh) == P(None, None, None, "fsdp")
    assert parameter_spec("params/conv_down_1/kernel", (2, 2, 3, 9), Mesh) == P(None, None, None, None)
    assert parameter_spec("params/block_0/attention/down_kernel", (8, 2), Mesh) == P("fsdp", None)


@pytest.mark.long
def test_eight_devices_give_what_one_gives(run_python):
    """Loss and gradient with all that can be split over data and fsdp, in one process."""
    code = """
import jax, jax.numpy as jnp, numpy as np
from train.config import loading
from train.devices import sharding
from train import tasks
plain = loading.load("configs/cnn_digits.py:none")
plain.mesh.update(data=2, fsdp=2, tensor=2)
plain.model.update(stages=2, width=8, dropout=0.0)
config = loading.validate(plain.to_dict())
task, mesh = tasks.find(config.task)(config), sharding.make_mesh(config.mesh)
params = task.init(jax.random.key(0))
batch = {"image": jax.random.uniform(jax.random.key(1), (8, 4, 4, 1)), "label": jnp.arange(8)}
step = jax.value_and_grad(lambda params, batch: task.loss(params, batch, None)["loss"])
one = jax.jit(step)(params, batch)
with jax.set_mesh(mesh):
    split = jax.device_put(params, sharding.state_shardings(params, mesh))
    batch = sharding.to_devices({name: np.asarray(x) for name, x in batch.items()}, mesh)
    eight = jax.jit(step)(split, batch)
assert split["block_0"]["conv_0"]["kernel"].addressable_shards[0].data.shape == (3, 3, 8, 4)
jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), eight, one)
print("the same")
"""
    assert "the same" in run_python("-c", code, devices=8).stdout
