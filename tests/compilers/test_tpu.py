"""The Pallas kernels and whole steps through the real TPU compilers, for described chips; nothing runs.

Needs the TPU compiler (requirements-tpu.txt), in an environment of its own: `make test-compilers`.
"""

import importlib.util
import json

import pytest

from tests.sizes import more

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="the TPU compiler is missing: make test-compilers installs it"
)

# In a process of its own, since libtpu changes what JAX finds. Each line is a case that compiled.
PROGRAM = """
import itertools, sys
import jax, jax.numpy as jnp
from jax.sharding import SingleDeviceSharding
import attention
from attention import Mask, mesh
from train.dry_run import topology
device = topology.devices(sys.argv[1])[0]
where = SingleDeviceSharding(device)
for spec, dtype, tokens in itertools.product(eval(sys.argv[2]), ("float32", "bfloat16"), eval(sys.argv[3])):
    shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, dtype, sharding=where)
    x = shape(1, tokens, 8, 64)
    params = jax.eval_shape(lambda: attention.init(spec, jax.random.key(0), 8, 64))
    params = {n: jax.ShapeDtypeStruct(p.shape, dtype, sharding=where) for n, p in params.items()}
    def loss(params, q, k, v):
        out = attention.attend(spec, params, q, k, v, mask=Mask(causal=True), implementation="pallas")
        return out.astype("float32").sum()
    with mesh.compiled_for(device):
        step = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(params, x, x, x)
    text = step.as_text()
    assert "tpu_custom_call" in text, "the interpreted form was lowered"
    program = step.compile()
    print(spec, dtype, tokens, program.memory_analysis().temp_size_in_bytes, flush=True)
"""


FUSED = ("alibi(learned=True)", "gaussian(squared=False)", "relative")  # functions of a pair without a form
SPECS = ("dot_product", "neural(dim=2)", "neural(dim=16)", "neural(dim=None)", "additive(units=16)", *FUSED)


@pytest.mark.parametrize(
    ("generation", "specs"),
    [("v5e:2x2", SPECS[:2]), ("v5e:2x2", FUSED[1:2]), more("v5e:2x2", SPECS[2:]), more("v6e:2x2", SPECS)],
)
def test_every_kernel_passes_mosaic_forward_and_backward(run_python, generation, specs):
    done = run_python("-c", PROGRAM, generation, repr(specs), "(1024,)")
    assert len(done.stdout.splitlines()) == 2 * len(specs)


def test_a_dry_run_says_what_the_chip_has(run_python):
    config = "--config=configs/gpt_pydoc.py:neural(dim=2)"
    done = run_python("-m", "train.main", "--dry-run", config, "--config.model.depth=1", "--topology=v5e:2x2")
    assert "of 17.18 GB" in done.stdout
    assert "which takes its links at least" in done.stdout
    assert "and not run" in done.stdout


@pytest.mark.more
def test_what_visits_travels_during_tiles(run_python):
    found = json.loads(run_python("-m", "tests.compilers.ring_schedule", "dot_product", "neural(dim=2)").stdout)
    sent = {spec: [size for size, _ in passes.values()] for spec, passes in found.items()}
    assert sent == {"dot_product": [4128, 9760], "neural(dim=2)": [2392, 4552]}
    assert all(during > 0.7 for passes in found.values() for _, during in [passes["forward"]])


def test_tiles_that_do_not_fit_are_refused_by_the_compiler(run_python):
    # A kernel holds the weights of a tile in bfloat16, and no other array over its pairs.
    program = PROGRAM.replace('implementation="pallas"', 'implementation="pallas(8192, 8192)"')
    done = run_python("-c", program, "v5e:2x2", repr(["neural(dim=16)"]), "(8192,)", check=False)
    assert done.returncode != 0
    assert "RESOURCE_EXHAUSTED" in done.stderr
