"""What only a GPU can show, `pytest -m gpu`: its kernels compute what mechanisms define, and `auto` takes them."""

import functools

import jax
import pytest

import attention
from attention.mesh import compute_capability
from benchmarks.device import right, worker

pytestmark = pytest.mark.gpu
if jax.default_backend() != "gpu":
    pytest.skip("there is no GPU, or tests were not told to take it (pytest -m gpu)", allow_module_level=True)

KERNELS = [check for check in right.checks() if check.implementation in ("cudnn", "pallas")]


@pytest.fixture(scope="module")
def oracle():
    made = right.Oracle(tiny=False)
    yield made
    made.process.kill()


@pytest.mark.parametrize("check", KERNELS, ids=lambda check: check.name)
def test_a_kernel_computes_what_the_mechanism_defines(check, oracle):
    row = worker.outcome(lambda: right.prepare(check, oracle)())
    if "refused" in row:
        pytest.skip(row["refused"])
    assert "failed" not in row, row
    assert not right.is_wrong(row), row


@pytest.mark.skipif(compute_capability() < (8, 0), reason="this GPU is older than cuDNN's fused kernels")
def test_auto_takes_cudnn_for_dot_products_in_bfloat16():
    check = right.Check("dot_product", "auto", "bfloat16", 64, "causal", grouped=False, dropped=False)
    program = jax.jit(right.program(check, "auto", "bfloat16")).lower(*right.arguments(check)).compile()
    assert "cudnn" in program.as_text()


@pytest.mark.skipif(compute_capability() < (8, 0), reason="this GPU is older than cuDNN's fused kernels")
@pytest.mark.parametrize("keys", [2, 32, 64, 96, 128, 192])
@pytest.mark.parametrize("kind", ["full", "causal", "lengths"])
def test_gradients_are_finite_beside_low_scores(kind, keys):
    """All scores are -120: where keys leave half a block of 128, cuDNN's gradients are NaN unless a mask ends them."""
    key = jax.numpy.zeros((1, keys, 2, 64), jax.numpy.bfloat16).at[..., 0].set(-960)
    query, value = key.at[..., 0].set(1), jax.numpy.ones_like(key)
    lengths = jax.numpy.array([keys])
    mask = {"causal": attention.Mask(causal=True), "lengths": attention.Mask(key_lengths=lengths)}.get(kind)

    @jax.jit
    def gradients(*arrays):
        named = "cudnn" if mask else "auto"
        attend = functools.partial(attention.attend, "dot_product", {}, mask=mask, implementation=named)
        return jax.vjp(attend, *arrays)[1](value)

    for gradient in gradients(query, key, value):
        assert bool(jax.numpy.isfinite(gradient).all())
