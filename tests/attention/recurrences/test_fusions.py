"""XLA's settings: with them, loops on a CPU compute the same numbers as calls one by one."""

import os
import subprocess
import sys

import jaxlib
import pytest

from attention.mesh import FUSIONS, WRONG

# In a loop over batches of sequences of one chunk, jaxlib 0.10.2 was wrong by 1 and more, differently each time;
# rounding before the norm makes up to 2e-4.
LOOP = """
import attention, jax, jax.numpy as jnp
from attention import Mask
x = jax.random.normal(jax.random.key(1), (2, 250, 64, 32))
kernels = [jax.random.normal(jax.random.key(n), (32, 32)) / 6 for n in range(4)]
params = attention.init("retention", jax.random.key(0), 1, 32)
def layer(x, implementation="chunked"):
    query, key, value = ((x @ kernel)[:, :, None] for kernel in kernels[:3])
    options = {"source": x, "mask": Mask(causal=True), "implementation": implementation}
    return x + attention.attend("retention", params, query, key, value, **options)[:, :, 0] @ kernels[3]
expected = jnp.stack([layer(one, "reference") for one in x])
for _ in range(3):
    assert jnp.allclose(jax.jit(lambda x: jax.lax.map(layer, x))(x), expected, atol=1e-2)
    jax.clear_caches()
"""
COMPUTES_FIRST = "import jax; jax.numpy.ones(1).block_until_ready(); import attention"


def run(program, **environment):
    environment = {"PATH": os.environ["PATH"], "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"} | environment
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)


@pytest.mark.more
@pytest.mark.skipif(os.environ.get("JAX_PLATFORMS", "cpu") != "cpu", reason="it is about CPUs")
def test_a_loop_computes_what_calls_one_by_one_do():
    found = run(LOOP)
    assert found.returncode == 0, found.stderr


def test_the_users_value_is_kept():
    program = f"import attention, os; assert os.environ['XLA_FLAGS'] == '{FUSIONS}=dot'"
    assert run(program, XLA_FLAGS=f"{FUSIONS}=dot").returncode == 0


def test_too_late_a_setting_is_said():
    if not WRONG[0] <= tuple(map(int, jaxlib.__version__.split(".")[:3])) <= WRONG[1]:
        pytest.skip("this jaxlib was not seen to be wrong")
    assert "import attention first" in run(COMPUTES_FIRST).stderr
    assert not run("import attention, jax; jax.numpy.ones(1)").stderr
