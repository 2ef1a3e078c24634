"""The kernels for GPUs through Mosaic GPU or Triton, and ptxas, for a described H100; nothing runs.

Needs the GPU compiler (requirements-cuda12.txt or requirements-cuda13.txt), in an environment of its own:
`make test-compilers` or `make test-cuda13`.
"""

import re

import pytest

from tests.compilers.test_tpu import FUSED, PROGRAM
from tests.sizes import once
from train.data import packages
from train.dry_run import topology

pytestmark = pytest.mark.skipif(
    not packages.is_installed(f"jax_plugins.xla_cuda{topology.cuda()}"),
    reason="the GPU compiler is missing: make test-compilers or make test-cuda13 installs it",
)
# As on a machine without a GPU; a kernel of the cache would not be compiled, and ptxas would say nothing.
HERE = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false", "MOSAIC_GPU_DUMP_PTXAS": "1"}


KERNELS = {"neural(dim=2)": 2, "neural(dim=16)": 3, "additive": 3}  # of both passes


@pytest.mark.parametrize("spec", once(KERNELS, ["neural(dim=2)"]))
def test_ptxas_spills_no_register(spec, run_python):
    program = PROGRAM.replace("tpu_custom_call", "mosaic_gpu")
    done = run_python("-c", program, "h100", repr([spec]), "(1024,)", env=HERE)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads$", done.stdout + done.stderr, re.MULTILINE)
    assert spills == [("0", "0")] * 2 * KERNELS[spec], "in float32 and bfloat16"


@pytest.mark.parametrize("spec", once(FUSED, FUSED[1:2]))
def test_any_function_of_a_pair_passes_triton_forward_and_backward(spec, run_python):
    program = PROGRAM.replace("tpu_custom_call", "__gpu$xla.gpu.triton")
    done = run_python("-c", program, "h100", repr([spec]), "(1024,)", env=HERE)
    assert len(done.stdout.splitlines()) == 2, "in float32 and bfloat16"


PARTS = """
import re
import jax, jax.numpy as jnp
from attention.kernels.mlp import gpu
from train.dry_run import topology
where = jax.sharding.SingleDeviceSharding(topology.devices("h100")[0])
x = jax.ShapeDtypeStruct((1, 8, 256, 64), jnp.float32, sharding=where)
text = jax.jit(lambda x: gpu._parts("value", x)).lower(x).compile().as_text()
print(len(re.findall(r"subtract\\((%?[\\w.]+), \\1\\)", text)), text.count("reduce-precision("))
"""


def test_xla_keeps_all_three_parts_of_float32(run_python):
    """If XLA left out a conversion to bfloat16 and back, the second part would be zero."""
    assert run_python("-c", PARTS, env=HERE).stdout.split() == ["0", "3"]


@pytest.mark.more
def test_what_a_gpu_runs_differs_between_mechanisms_dtypes_and_masks(run_python):
    lines = run_python("-m", "benchmarks.compilers.traced").stdout.splitlines()
    assert len({line.split()[-1] for line in lines}) == len(lines) > 50


@pytest.mark.more
def test_chunks_at_once_start_fewer_kernels_than_a_loop_over_them(run_python):
    printed = run_python("-m", "benchmarks.compilers.launches", "--only", "linear", env=HERE).stdout
    kernels = re.findall(r"^\| `linear` \| [a-z ]+ \| ([\d,]+) \| ([\d,]+) \|", printed, re.MULTILINE)
    assert len(kernels) == 2, "forward, and both passes"
    for at_once, looped in kernels:
        assert 0 < int(at_once.replace(",", "")) < 0.6 * int(looped.replace(",", ""))
