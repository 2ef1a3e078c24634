"""The kernels for Hopper GPUs through Mosaic GPU and ptxas, for a described H100; nothing runs.

Needs the GPU compiler (requirements-gpu.txt), in an environment of its own: `make test-compilers`.
"""

import importlib.util
import os
import re
import subprocess
import sys

import pytest

from tests.compilers.test_tpu import PROGRAM
from tests.conftest import ROOT
from tests.sizes import once

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda12_plugin") is None,
    reason="the GPU compiler is missing: make test-compilers installs it",
)


@pytest.mark.parametrize("spec", once(["neural(dim=2)", "neural(dim=16)", "additive"], ["neural(dim=2)"]))
def test_ptxas_spills_no_register(spec):
    program = PROGRAM.replace("tpu_custom_call", "mosaic_gpu")
    done = subprocess.run(
        [sys.executable, "-c", program, "h100", repr([spec]), "(1024,)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"MOSAIC_GPU_DUMP_PTXAS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads$", done.stdout + done.stderr, re.MULTILINE)
    assert spills == [("0", "0")] * 6, "three kernels, in float32 and bfloat16"
