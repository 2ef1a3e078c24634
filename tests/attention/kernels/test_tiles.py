"""Sizes of tiles in an implementation's name."""

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, UnsupportedError, UsageError, dot_product_attention
from attention.check.subject import inputs
from attention.forms import Dot
from attention.kernels.call import Call, parse_implementation
from attention.kernels.loops import plan
from attention.kernels.loops.scores import DotScore, NarrowScore, PairTiles
from attention.normaliser import reduce_last
from tests.attention.cases import CASES


def rule(length, heads=8, score=None, block=None):
    array = jnp.zeros((1, length, heads, 4))
    fields = {"scores_shape": (1, heads, length, length), "value": array, "bias": None, "dropout_rate": 0.0}
    fields |= {"dropout_seed": None, "return_weights": False, "mask": Mask(), "block": block}
    form = None if score else Dot(array, array, 1.0)
    return plan.rule(Call(form=form, **fields), score or DotScore(1.0), 1)


UNITS = NarrowScore("relu", per_head=True)


@pytest.mark.parametrize(
    ("score", "length", "tiling"),
    [
        (None, 100, plan.Tiling(100, 100, 6)),
        (None, 256, plan.Tiling(256, 256)),
        (None, 1000, plan.Tiling(256, 512)),
        (PairTiles(None, 8, 1), 1000, plan.Tiling(256, 256)),
        (UNITS, 50, plan.Tiling(50, 50, 26)),
        (UNITS, 80, plan.Tiling(80, 80, 10)),
        (UNITS, 81, plan.Tiling(64, 64)),
        (UNITS, 257, plan.Tiling(160, 160)),
        (UNITS, 4096, plan.Tiling(256, 256)),
    ],
)
def test_tiles_fit_in_fast_memory_and_units_of_more_than_80_tokens_are_in_a_loop(score, length, tiling):
    assert rule(length, score=score) == tiling


@pytest.mark.parametrize("shape", [(2, 3, 64), (3, 50), (4, 32), (0, 64)])
@pytest.mark.parametrize("reduce", [jnp.sum, jnp.max])
def test_reducing_in_lanes_is_reducing(reduce, shape):
    x, ways = jax.random.normal(jax.random.key(0), shape), (reduce_last, plan.reduce_in_lanes)
    chex.assert_trees_all_close(*(way(reduce, x) for way in ways), rtol=1e-6)
    gradients = [jax.grad(lambda x, way=way: jnp.sum(way(reduce, x) ** 2))(x) for way in ways]
    chex.assert_trees_all_close(*gradients, rtol=1e-5)


def test_a_cpu_alone_reduces_in_lanes(monkeypatch):
    program = lambda: str(jax.make_jaxpr(lambda x: plan.reduce_in_lanes(jnp.sum, x))(jnp.zeros((2, 64))))  # noqa: E731
    assert "optimization_barrier" in program()
    monkeypatch.setattr(plan, "platform", lambda: "gpu")
    assert "optimization_barrier" not in program()


@pytest.mark.more
def test_second_derivatives_are_those_of_xla(x64):
    """Forward over reverse: the sums of the MLP have gradients of their own in the backward pass alone."""
    weights = CASES["neural"].weights()

    def hessian(name):
        loss = lambda x: (CASES["neural"].run(name, inputs(), weights | {"layer_1_kernel": x}) ** 2).sum()  # noqa: E731
        return jax.hessian(loss)(weights["layer_1_kernel"])

    chex.assert_trees_all_close(hessian("chunked(4, 3)"), hessian("xla"), rtol=0, atol=1e-9)


@pytest.mark.parametrize("of_arrays", [jnp.float32, jnp.float64])
def test_weights_may_be_of_another_dtype(x64, of_arrays):
    arrays = tuple(x.astype(of_arrays) for x in inputs())
    weights = CASES["neural"].weights(jnp.float64 if of_arrays == jnp.float32 else jnp.float32)
    tiled, whole = (CASES["neural"].outcome(which, arrays, weights) for which in ("chunked(4, 3)", "xla"))
    chex.assert_trees_all_close(tiled, whole, rtol=1e-4, atol=1e-5)


def test_the_sizes_are_what_is_computed_with():
    assert rule(50, 2, block=(16, 64)) == plan.Tiling(16, 50)
    array = jnp.zeros((1, 50, 2, 4))
    program = lambda implementation: (  # noqa: E731
        jax.jit(lambda x: dot_product_attention(x, x, x, implementation=implementation)).lower(array).as_text()
    )
    assert "tensor<1x2x10x25x" in program("chunked(10, 25)")
    assert "tensor<1x2x10x25x" not in program("chunked")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("xla(2, 2)", "only chunked and pallas have"),
        ("chunked(0, 8)", "at least 1 query and 1 key"),
        ("chunked(8)", r"Unknown attention implementation 'chunked\(8\)'. Did you mean 'chunked'"),
    ],
)
def test_mistakes(text, message):
    with pytest.raises(UsageError, match=message):
        parse_implementation(text)


@pytest.mark.parametrize("name", ["linear", "delta"])
def test_a_running_state_has_no_tiles(name):
    with pytest.raises(UnsupportedError, match="has no tiles"):
        CASES[name].run("chunked(8, 8)", inputs(), CASES[name].weights())
