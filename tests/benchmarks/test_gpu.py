"""What only a GPU can show, `pytest -m gpu`: its kernels compute what mechanisms define, and `auto` takes them."""

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
@pytest.mark.parametrize("length", [64, 192])
def test_gradients_are_finite_where_keys_leave_half_a_block(length):
    """All scores are -120, where cuDNN's gradients are NaN unless lengths end the keys."""
    key = jax.numpy.zeros((1, length, 2, 64), jax.numpy.bfloat16).at[..., 0].set(-960)
    query, value = key.at[..., 0].set(1), key.at[...].set(1)

    @jax.jit
    def gradients(*arrays):
        return jax.vjp(lambda *x: attention.attend("dot_product", {}, *x, implementation="cudnn"), *arrays)[1](value)

    for gradient in gradients(query, key, value):
        assert bool(jax.numpy.isfinite(gradient).all())
