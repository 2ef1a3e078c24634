"""The Pallas kernels of the pairwise family: interpreted against `xla`, and lowered for the machines they are for."""

import functools
import itertools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu

from attention import Mask, additive_attention
from attention.activations import ACTIVATIONS
from attention.forms import MLP
from attention.kernels import mlp, xla
from attention.kernels.arrays import precise
from attention.kernels.call import Call, common
from attention.kernels.mlp import gpu, strips, tile, tpu
from attention.options import Options
from tests.attention.cases import SEGMENTS, assert_close, both_passes, outcome
from tests.sizes import more, once

BLOCK = (16, 16)


def inputs(units=(2, 1), *, per_head=False, biased=True, bias=None, shape=(2, 20, 27, 2), width=8, dtype=jnp.float32):
    """Arrays with gradients, by name: B, T, S and N are the shape, V the width."""
    batch, queries, keys, heads = shape
    own = (heads,) if per_head else ()
    random = iter(jax.random.split(jax.random.key(0), 16))

    def normal(*shape):
        return jax.random.normal(next(random), shape, dtype)

    layers = tuple((normal(*own, m, k), normal(*own, k) if biased else None) for m, k in itertools.pairwise(units))
    arrays = {
        "query": normal(batch, queries, heads, units[0]),
        "key": normal(batch, keys, heads, units[0]),
        "value": normal(batch, keys, heads, width),
        "layers": layers,
        "vector": normal(*own, units[-1]),
    }
    return arrays | ({} if bias is None else {"bias": normal(*bias)})


def call_of(arrays, *, activation="relu", mask=None, rate=0.0, return_weights=False):
    arrays = dict(arrays)
    options = Options(mask, arrays.pop("bias", None), rate, jax.random.key(7), return_weights)
    queries, heads = arrays["query"].shape[-3:-1]
    value = options.mask.without_unreachable(arrays.pop("value"), queries, 4)
    form = MLP(arrays.pop("layers"), arrays.pop("vector"), activation)
    return Call(**arrays, form=form, **common(queries, heads, value, options))


def pair_scores(call):
    """The MLP on all pairs at once."""
    activation = ACTIVATIONS[call.form.activation]
    a, b = (jnp.moveaxis(precise(x), -2, -3) for x in (call.query, call.key))
    hidden = activation(a[..., :, None, :] + b[..., None, :, :])
    heads = "n" * (call.form.vector.ndim - 1)
    for kernel, bias in call.form.layers:
        hidden = jnp.einsum(f"...ntsm,{heads}mk->...ntsk", hidden, kernel.astype(hidden.dtype))
        if bias is not None:
            per_pair = bias.astype(hidden.dtype)[..., None, None, :]
            hidden = hidden + per_pair.reshape((1,) * (hidden.ndim - per_pair.ndim) + per_pair.shape)
        hidden = activation(hidden)
    return jnp.einsum(f"...ntsm,{heads}m->...nts", hidden, call.form.vector.astype(hidden.dtype))


def all_pairs(call):
    """Output and weights without tiles."""
    return xla.weigh_values(call, pair_scores(call))


def output(pair, **options):
    """A function of arrays to the output."""
    return lambda arrays: pair(call_of(arrays, **options))[0]


def interpreted(call):
    return mlp.attend(call, BLOCK)


CASES = {
    "causal, by rows, weights of each head": ({"units": (8, 4), "per_head": True}, {"mask": Mask(causal=True)}),
    "causal window of a cache, three layers, bias of keys": (
        {"units": (3, 2, 2), "biased": False, "bias": (1, 2, 1, 27)},
        {"mask": Mask(causal=True, window=9, query_offset=5), "activation": "swish"},
    ),
    "window, lengths, one of them 0, bias of all, dropout, one layer": (
        {"units": (5,), "bias": (2, 2, 20, 27)},
        {"mask": Mask(window=9, key_lengths=jnp.array([0, 19])), "rate": 0.3, "activation": "gelu"},
    ),
    "one mixed unit, causal from an offset, dropout": (
        {"units": (3, 1)},
        {"mask": Mask(causal=True, query_offset=3), "rate": 0.3},
    ),
    "one mixed unit without its bias, bias of all": ({"units": (2, 1), "biased": False, "bias": (2, 1, 20, 27)}, {}),
    "one layer, lengths, weights of each head": (
        {"units": (4,), "per_head": True},
        {"mask": Mask(key_lengths=jnp.array([0, 19]))},
    ),
    "segments, dense": (
        {"units": (3, 2), "per_head": True},
        {"mask": Mask(**SEGMENTS, dense=jnp.arange(27).reshape(1, 1, 1, 27) % 5 > 0), "activation": "gelu_tanh"},
    ),
}


@pytest.mark.parametrize("case", once(CASES, ["segments, dense", "one mixed unit, causal from an offset, dropout"]))
def test_interpreted_equals_xla_with_all_gradients_to_ten_digits(case, x64):
    shapes, options = CASES[case]
    arrays = inputs(**shapes, dtype=jnp.float64)
    assert_close(outcome(output(interpreted, **options), arrays), outcome(output(all_pairs, **options), arrays), 1e-10)


def test_a_bias_of_zero_has_no_gradient_from_pairs_of_which_no_unit_is_positive():
    arrays = inputs((2, 1))
    ((kernel, bias),) = arrays["layers"]
    arrays["layers"] = ((kernel, jnp.zeros_like(bias)),)
    assert_close(outcome(output(interpreted), arrays), outcome(output(all_pairs), arrays), 1e-5)


@pytest.mark.more
@pytest.mark.parametrize("units", [(2, 1), more((3, 2))])
def test_in_parts_and_groups_equals_xla(units, monkeypatch, x64):
    """Tiles of several parts and products, computed in a loop, with values wider than a part."""
    monkeypatch.setattr(tile, "LANES", 8)
    monkeypatch.setattr(tpu, "LANES", 8)
    monkeypatch.setattr(tile, "MULTIPLIED", (32, 16))
    for form in (strips.ByUnits, strips.Rectified):
        monkeypatch.setattr(form, "together", 16)
    arrays = inputs(units, shape=(2, 70, 50, 2), width=24, dtype=jnp.float64)
    options = {"mask": Mask(causal=True, key_lengths=jnp.array([50, 31])), "rate": 0.3}
    actual = outcome(output(lambda call: mlp.attend(call, (64, 32)), **options), arrays)
    assert_close(actual, outcome(output(all_pairs, **options), arrays), 1e-10)


def test_queries_and_keys_far_from_each_other_round_as_near_ones_do():
    """Of a_m + b_m, a common part of the a_m may be undone by the b_m."""
    arrays = inputs((2, 1))
    moved = arrays | {"query": arrays["query"] + 1000.0, "key": arrays["key"] - 1000.0}
    exact = outcome(output(all_pairs), moved)
    assert_close(outcome(output(interpreted), moved), exact, 1e-5)


@pytest.mark.more
@pytest.mark.parametrize(("units", "activation"), [((3, 2), "tanh"), ((2, 1), "relu")])
def test_in_bfloat16_is_as_near_to_float32_as_xla(units, activation):
    arrays, options = inputs(units, dtype=jnp.bfloat16), {"mask": Mask(causal=True), "activation": activation}
    single = jax.tree.map(lambda x: x.astype(jnp.float32), arrays)
    chex.assert_trees_all_equal(*(pair_scores(call_of(x, **options)) for x in (arrays, single)))
    exact = outcome(output(all_pairs, **options), single)
    actual = outcome(output(interpreted, **options), arrays)
    chex.assert_type(jax.tree.leaves(actual), jnp.bfloat16)
    assert_close(actual, exact, 0.02)


def test_exponents_of_a_bfloat16_network_are_rounded_once():
    """Its numbers times log2 e are not rounded to bfloat16, which would scale every score."""
    call = call_of(inputs((3, 2), dtype=jnp.bfloat16))
    plan = mlp.PairPlan(network=mlp._network(call), **mlp.plan_of(call, BLOCK, "interpret"))
    expected = call.form.vector.astype(jnp.float32) * mlp.LOG_E
    chex.assert_trees_all_equal(mlp._operands(call, plan).weights[-1].ravel(), expected)


def test_public_functions_take_it_by_name_over_any_batch_axes():
    query, key, value = (jax.random.normal(jax.random.key(i), (2, 1, 7, 4, 6)) for i in range(3))
    weights = jnp.ones((6, 3)), jnp.ones((6, 3)), jnp.ones(3), jnp.ones(3)

    def run(implementation):
        of = functools.partial(additive_attention, implementation=implementation)
        return jax.jit(of)(query, key[..., :2, :], value[..., :2, :], *weights)

    chex.assert_trees_all_close(run("pallas"), run("xla"), atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "options", "platform", "reason"),
    [
        ({}, {"return_weights": True}, "tpu", "returns no weights"),
        ({"bias": (1, 1, 1, 27)}, {}, "gpu", "adds no bias"),
        ({}, {"mask": Mask(dense=jnp.ones((1, 1, 20, 27), bool))}, "gpu", "no dense mask"),
        ({"units": (64, 32)}, {}, "gpu", "64 units and 2112 weights do not fit"),
        ({"units": (4, 3, 2)}, {}, "gpu", "at most two layers, not 3"),
        ({"width": 136}, {}, "gpu", "at most 128 wide"),
        ({"shape": (65_536, 1, 1, 1), "width": 1}, {}, "gpu", "at most 65,535 sequences or heads"),
        ({"dtype": jnp.float16}, {}, "tpu", "hold float32 or bfloat16, not float16"),
        ({"shape": (2, 0, 27, 3)}, {}, "tpu", "needs at least one of everything"),
        ({"shape": (2, 20, 0, 3)}, {}, "gpu", "needs at least one of everything"),
    ],
)
def test_what_it_cannot_do_is_said(shapes, options, platform, reason):
    assert reason in mlp.why_not(call_of(inputs(**shapes), **options), platform)


def test_the_dtype_that_is_refused_is_named():
    arrays = inputs()
    arrays["value"] = arrays["value"].astype(jnp.float16)
    assert mlp.why_not(call_of(arrays), "tpu") == "its kernels hold float32 or bfloat16, not float16"


def test_other_machines_use_chunked(monkeypatch):
    monkeypatch.setattr(mlp, "platform_here", lambda: "")
    assert "needs a TPU or an NVIDIA GPU of the Hopper generation" in mlp.why_not(call_of(inputs()))


LOWERED = {
    "neural": ({}, {"mask": Mask(causal=True), "rate": 0.1}, 1),
    "wide": ({"units": (9, 4), "per_head": True, "dtype": jnp.bfloat16, "width": 64}, {"mask": Mask(window=9)}, 2),
    "additive": ({"units": (64,)}, {"activation": "tanh", "mask": Mask(key_lengths=jnp.array([9, 20]))}, 2),
}  # and the number of a GPU's backward passes


CUSTOM_CALLS = [jax.export.DisabledSafetyCheck.custom_call("mosaic_gpu_v2")]  # JAX does not promise to keep it


@pytest.mark.parametrize("case", once(LOWERED, ["neural"]))
@pytest.mark.parametrize(
    ("platform", "name", "target"), [more("tpu", "tpu", "tpu_custom_call"), ("cuda", "gpu", "mosaic_gpu_v2")]
)
def test_both_passes_lower_to_mosaic(platform, name, target, case):
    shapes, options, backward = LOWERED[case]
    program = jax.jit(both_passes(output(lambda call: mlp.attend(call, platform=name), **options)))
    exported = jax.export.export(program, platforms=(platform,), disabled_checks=CUSTOM_CALLS)(inputs(**shapes))
    assert exported.mlir_module().count(f"stablehlo.custom_call @{target}(") == 1 + (backward if name == "gpu" else 1)


def products_of_parts(total, rows, wide):
    """What the tensor cores add up, which no interpreter has."""
    for i, j in gpu._products(len(wide)):
        total += jnp.dot(rows[i][...].astype(jnp.float32), wide[j].astype(jnp.float32), precision="highest")
    return total


INTERPRETED = {
    "loop": ((5, 3), {"mask": Mask(causal=True, window=60, key_lengths=jnp.array([66])), "rate": 0.2}, "swish"),
    "groups": ((2, 12), {"mask": Mask(causal=True)}, "relu"),
    "one layer, two passes": ((9,), {}, "tanh"),
    "in registers": ((2, 1), {"mask": Mask(causal=True, query_offset=3)}, "relu"),
}


@pytest.mark.more
@pytest.mark.parametrize("case", once(INTERPRETED, ["loop", "in registers"]))
@pytest.mark.skipif(not hasattr(plgpu, "force_gpu_interpret_mode"), reason="this JAX does not interpret GPU kernels")
def test_gpu_kernels_interpreted_but_for_tensor_cores_equal_xla(monkeypatch, case):
    def add(total, weights, wide):
        return products_of_parts(total, gpu.cut(weights, len(wide)), [x[...] for x in wide])

    def outer(rows, wide, columns):
        return products_of_parts(jnp.zeros((64, columns)), rows, [x[...].T for x in wide])

    monkeypatch.setattr(gpu, "_add_product", add)
    monkeypatch.setattr(gpu, "_outer_product", outer)
    monkeypatch.setattr(gpu, "BUSY", 1)
    units, options, activation = INTERPRETED[case]
    arrays = inputs(units, shape=(1, 100, 70, 1))
    options = options | {"activation": activation}
    expected = outcome(output(all_pairs, **options), arrays)
    with plgpu.force_gpu_interpret_mode():
        actual = outcome(output(lambda call: mlp.attend(call, platform="gpu"), **options), arrays)
    assert_close(actual, expected, 1e-5)
