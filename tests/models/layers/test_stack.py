"""A scan over blocks is the same function as the blocks one after the other, and a block's MLP is its equation."""

import math

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.gpt import GPTConfig
from models.layers import stack
from models.layers.blocks import Mlp
from tests.jaxprs import equations
from tests.models import test_every_model as every
from tests.models.small import apply, small
from tests.sizes import more, once

DROPOUT = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.2}
NO_DROPOUT = dict.fromkeys(DROPOUT, 0.0)
KEYS = jax.random.split(jax.random.key(0))
# What is changed in a family's small model, and how many layers each scan has.
FAMILIES = {
    "vit": ({}, [2]),
    "gpt": ({"depth": 3, "attention": "neural(dim=2)|dot_product"}, [2]),
    "encoder_decoder": ({"depth": 2}, [2, 2]),
}


def build(family, **changes):
    """A small model with dropout, its variables and inputs."""
    return every.build(family, **DROPOUT | FAMILIES[family][0] | changes)


def test_a_gated_mlp_multiplies_its_activated_layer_by_another():
    """(swish(x W_g + b_g) ⊙ (x W_u + b_u)) W_d + b_d (Shazeer 2020, eq. 6, with biases)."""
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    mlp = Mlp(5, "swish", gated=True)
    shapes = jax.eval_shape(lambda: mlp.init(jax.random.key(1), x, train=False)["params"])
    params = jax.tree.map(lambda leaf: jax.random.normal(jax.random.key(leaf.size), leaf.shape), shapes)
    dense = lambda name, x: jnp.dot(x, params[name]["kernel"]) + params[name]["bias"][None, None]  # noqa: E731
    expected = dense("down", jax.nn.silu(dense("gate", x)) * dense("up", x))
    chex.assert_trees_all_close(mlp.apply({"params": params}, x, train=False), expected, atol=1e-5)


def loss_of(model, inputs):
    """A loss with dropout, as a function of variables and a key."""

    def loss(variables, key):
        out = model.apply(variables, *inputs, train=True, rngs={"dropout": key})
        return jnp.mean(jnp.square(out - 1.0))

    return loss


@pytest.mark.parametrize("family", once(FAMILIES, ["gpt"]))
def test_runs_of_one_mechanism_are_scanned_and_compute_the_same(family):
    options = NO_DROPOUT | {"implementation": "reference"}
    (plain, variables, inputs), (scanned, *_) = build(family, **options), build(family, **options, scan=True)
    losses = loss_of(plain, inputs), loss_of(scanned, inputs)
    one, other = (jax.jit(jax.value_and_grad(loss))(variables, KEYS[0]) for loss in losses)
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)
    jaxpr = jax.make_jaxpr(losses[1])(variables, KEYS[0])
    assert [eqn.params["length"] for eqn in equations(jaxpr) if eqn.primitive.name == "scan"] == FAMILIES[family][1]


class Stack(nn.Module):
    """Blocks alone."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x, train=False):
        return stack.run(self.config.blocks(9), x, None, train, scan=self.config.scan)[0]


@pytest.mark.parametrize("scan", [False, True])
def test_every_layer_draws_apart(scan):
    """Of two layers that each add 1, with one draw for both no sum would be 1."""
    model, x = Stack(small(GPTConfig, width=128, scan=scan, **DROPOUT)), jnp.zeros((8, 9, 128))
    one_of = lambda path, leaf: jnp.full(leaf.shape, float("['down']['bias']" in jax.tree_util.keystr(path)))  # noqa: E731
    params = jax.tree_util.tree_map_with_path(one_of, jax.eval_shape(model.init, KEYS[0], x))
    drop = jax.jit(lambda key: model.apply(params, x, True, rngs={"dropout": key}))
    sums = [np.array(drop(key)) for key in (*KEYS[:2], KEYS[0])]
    counts = [np.mean(np.isclose(sums[0], drawn / 0.8)) for drawn in range(3)]
    np.testing.assert_allclose(counts, [0.2**2, 2 * 0.2 * 0.8, 0.8**2], atol=0.02)
    assert (sums[0] == sums[2]).all()
    assert 0.3 < np.mean(sums[0] != sums[1]) < 0.6


@pytest.mark.more
def test_scanned_layers_keep_their_numbers():
    """Differential attention starts to subtract more from layer to layer, here in the second to the fourth."""
    starts = [0.8 - 0.6 * math.exp(-0.3 * layer) for layer in (1, 2, 3)]
    one_by_one = "|".join(["dot_product", *(f"differential(initial={start})" for start in starts)])
    plain, variables, inputs = build("gpt", attention=one_by_one, depth=4)
    scanned, *_ = build("gpt", attention="dot_product|differential", depth=4, scan=True)
    one, other = (model.apply(variables, *inputs) for model in (plain, scanned))
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize("scan", [False, True])
def test_remat_is_exact(scan):
    """The same loss to the bit, scanned or not; gradients to the rounding of sums that XLA orders anew."""
    plain, variables, inputs = build("vit", scan=scan)
    key = jax.random.key(5)
    expected = jax.jit(jax.value_and_grad(loss_of(plain, inputs)))(variables, key)
    for remat in ("block", "dots"):
        loss = loss_of(build("vit", remat=remat, scan=scan)[0], inputs)
        found = jax.jit(jax.value_and_grad(loss))(variables, key)
        assert found[0] == expected[0]
        chex.assert_trees_all_close(found[1], expected[1], rtol=1e-6, atol=1e-7)
        names = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(loss)(variables, key))]
        assert names.count("remat2") == (1 if scan else 2)


INDEXED = "deepseek_sparse(heads=2, width=4, top=3, weight=2.0)"


@pytest.mark.parametrize("compiled", [{"remat": "block"}, more({"scan": True})])
def test_a_models_own_loss_is_the_sum_of_its_layers_and_others_have_none(compiled):
    model, variables, inputs = build("gpt", attention=INDEXED, depth=2)
    _, kept = apply(model, variables, *inputs, mutable="own_losses")
    each = [kept["own_losses"][f"block_{layer}"]["attention"]["own_loss"] for layer in range(2)]
    assert np.abs(each[0] - each[1]).min() > 1e-3
    other = build("gpt", attention=INDEXED, depth=2, **compiled)[0]
    _, kept = apply(other, variables, *inputs, mutable="own_losses")
    chex.assert_trees_all_close(sum(jax.tree.leaves(kept)), each[0] + each[1], rtol=1e-5)
    configs = [small(GPTConfig, attention=spec) for spec in (f"dot_product|{INDEXED}", "dot_product")]
    assert [config.has_own_loss for config in configs] == [True, False]
