"""A scan over blocks is the same function as the blocks one after the other, and a block's MLP is its equation."""

import dataclasses
import math

import chex
import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.encoder_decoder import EncoderDecoderConfig
from models.gpt import GPTConfig
from models.layers import stack
from models.layers.blocks import Mlp
from models.vit import ViTConfig
from tests.jaxprs import equations
from tests.models.small import apply, random_params, small
from tests.sizes import more, once

DROPOUT = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.2}
NO_DROPOUT = dict.fromkeys(DROPOUT, 0.0)
SIZES = {"width": 8, "mlp": 12, "depth": 2, "implementation": "xla"}
VIT = small(ViTConfig, name="vit", patch=4, pool="class_token", attention="super", **SIZES | DROPOUT)
LANGUAGE = {"tied_output": False, "scale_embeddings": False, "attention": "neural(dim=2)|dot_product"}
GPT_CONFIG = small(GPTConfig, name="gpt", **SIZES | DROPOUT | LANGUAGE | {"depth": 3})
TRANSLATION = small(EncoderDecoderConfig, **SIZES | DROPOUT)
KEYS = jax.random.split(jax.random.key(0), 3)
TOKENS = jax.random.randint(KEYS[0], (2, 7), 0, 11)
# A config, the sizes of the data, inputs, and how many layers each scan has.
FAMILIES = {
    "vit": (VIT, ((8, 8, 1), 5), (jax.random.normal(KEYS[1], (2, 8, 8, 1)),), [2]),
    "gpt": (GPT_CONFIG, (11, 9), (TOKENS,), [2]),
    "encoder_decoder": (TRANSLATION, (11, 11, 7, 6), (TOKENS, jnp.array([7, 3]), TOKENS[:, 1:]), [2, 2]),
}


def build(family, **changes):
    """A model and its inputs, with other options of its config."""
    config, sizes, inputs, _ = FAMILIES[family]
    return dataclasses.replace(config, **changes).build(*sizes), inputs


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
    """A loss with dropout, as a function of parameters and a key."""

    def loss(params, key):
        out = model.apply({"params": params}, *inputs, train=True, rngs={"dropout": key})
        return jnp.mean(jnp.square(out - 1.0))

    return loss


def params_of(model, inputs):
    return random_params(model, *inputs)["params"]


@pytest.mark.parametrize("family", once(FAMILIES, ["gpt"]))
def test_runs_of_one_mechanism_are_scanned_and_compute_the_same(family):
    options = NO_DROPOUT | {"implementation": "reference"}
    (plain, inputs), (scanned, _) = build(family, **options), build(family, **options, scan=True)
    params = params_of(plain, inputs)
    one, other = (jax.jit(jax.value_and_grad(loss_of(model, inputs)))(params, KEYS[0]) for model in (plain, scanned))
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)
    jaxpr = jax.make_jaxpr(loss_of(scanned, inputs))(params, KEYS[0])
    assert [eqn.params["length"] for eqn in equations(jaxpr) if eqn.primitive.name == "scan"] == FAMILIES[family][3]


class Stack(nn.Module):
    """Blocks alone."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x, train=False):
        return stack.run(self.config.blocks(9), x, None, train, scan=self.config.scan)[0]


@pytest.mark.parametrize("scan", [False, True])
def test_every_layer_draws_apart(scan):
    """Of two layers that each add 1, with one draw for both no sum would be 1."""
    sizes = {"depth": 2, "width": 128, "attention": "dot_product"}
    model, x = Stack(dataclasses.replace(GPT_CONFIG, **sizes, scan=scan)), jnp.zeros((8, 9, 128))
    flat = flax.traverse_util.flatten_dict(jax.eval_shape(model.init, KEYS[0], x), sep="/")
    flat = {path: jnp.full(leaf.shape, float(path.endswith("down/bias"))) for path, leaf in flat.items()}
    params = flax.traverse_util.unflatten_dict(flat, sep="/")
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
    (plain, inputs), (scanned, _) = (
        build("gpt", attention=spec, depth=4, scan=spec != one_by_one)
        for spec in (one_by_one, "dot_product|differential")
    )
    params = params_of(plain, inputs)
    one, other = (model.apply({"params": params}, *inputs) for model in (plain, scanned))
    chex.assert_trees_all_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.more
@pytest.mark.parametrize("scan", [False, True])
def test_remat_is_exact(scan):
    """The same loss to the bit, scanned or not; gradients to the rounding of sums that XLA orders anew."""
    plain, inputs = build("vit", scan=scan)
    params, key = params_of(plain, inputs), jax.random.key(5)
    expected = jax.jit(jax.value_and_grad(loss_of(plain, inputs)))(params, key)
    for remat in ("block", "dots"):
        loss = loss_of(build("vit", remat=remat, scan=scan)[0], inputs)
        found = jax.jit(jax.value_and_grad(loss))(params, key)
        assert found[0] == expected[0]
        chex.assert_trees_all_close(found[1], expected[1], rtol=1e-6, atol=1e-7)
        names = [eqn.primitive.name for eqn in equations(jax.make_jaxpr(loss)(params, key))]
        assert names.count("remat2") == (1 if scan else 2)


INDEXED = "deepseek_sparse(heads=2, width=4, top=3, weight=2.0)"


@pytest.mark.parametrize("compiled", [{"remat": "block"}, more({"scan": True})])
def test_a_models_own_loss_is_the_sum_of_its_layers_and_others_have_none(compiled):
    model, inputs = build("gpt", attention=INDEXED, depth=2)
    variables = random_params(model, *inputs)
    _, kept = apply(model, variables, *inputs, mutable="own_losses")
    each = [kept["own_losses"][f"block_{layer}"]["attention"]["own_loss"] for layer in range(2)]
    assert np.abs(each[0] - each[1]).min() > 1e-3
    other = build("gpt", attention=INDEXED, depth=2, **compiled)[0]
    _, kept = apply(other, variables, *inputs, mutable="own_losses")
    chex.assert_trees_all_close(sum(jax.tree.leaves(kept)), each[0] + each[1], rtol=1e-5)
    configs = [dataclasses.replace(GPT_CONFIG, attention=spec) for spec in (f"dot_product|{INDEXED}", "dot_product")]
    assert [config.has_own_loss for config in configs] == [True, False]
