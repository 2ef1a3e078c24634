"""Sizes of tiles in an implementation's name."""

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, UnsupportedError, UsageError, dot_product_attention
from attention.check.subject import inputs
from attention.forms import Dot
from attention.kernels import loops
from attention.kernels.call import Call, parse_implementation
from attention.kernels.loops import plan
from tests.attention.cases import CASES
from tests.sizes import more, once


@pytest.mark.parametrize("name", ["dot_product", "neural", more("gaussian")])
@pytest.mark.parametrize("sizes", once(["(3, 2)", "(100, 4)"], ["(3, 2)"]))
def test_any_sizes_compute_the_same(x64, name, sizes):
    weights, mask = CASES[name].weights(), Mask(causal=True)
    whole, tiled = (CASES[name].run(f"chunked{tail}", inputs(), weights, mask) for tail in ("", sizes))
    chex.assert_trees_all_close(whole, tiled, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", once(["dot_product", "alibi"], ["dot_product"]))
def test_the_backward_pass_may_have_other_sizes(x64, monkeypatch, name):
    weights, mask = CASES[name].weights(), Mask(causal=True, window=5)
    options = {"dropout_rate": 0.31, "dropout_key": jax.random.key(3)}  # a rate for which no test compiles other sizes
    monkeypatch.setattr(loops, "rule", lambda call, units: plan.Tiling(3, 2, backward=(2, 4)))
    tiled, whole = (CASES[name].outcome(which, inputs(), weights, mask, **options) for which in ("chunked", "xla"))
    chex.assert_trees_all_close(tiled, whole, rtol=0, atol=1e-10)


def rule(length, heads=8, mask=None, block=None):
    array = jnp.zeros((1, length, heads, 4))
    fields = {"scores_shape": (1, heads, length, length), "value": array, "bias": None, "dropout_rate": 0.0}
    fields |= {"dropout_seed": None, "return_weights": False, "mask": mask or Mask(), "block": block}
    return plan.rule(Call(form=Dot(array, array, 1.0), **fields), 1)


@pytest.mark.parametrize(
    ("causal", "length", "tiling"),
    [
        (True, 100, plan.Tiling(100, 100, 6)),
        (True, 256, plan.Tiling(64, 64)),
        (False, 256, plan.Tiling(256, 256)),
        (True, 1024, plan.Tiling(512, 256, backward=(256, 512))),
    ],
)
def test_products_have_more_rows_than_columns_in_both_passes(causal, length, tiling):
    assert rule(length, mask=Mask(causal=causal)) == tiling


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
