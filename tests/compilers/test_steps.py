"""A step of every kind of model through the real TPU and GPU compilers, for described chips; nothing runs.

Needs the compilers (requirements-tpu.txt, requirements-cuda12.txt or -cuda13.txt), in environments of their own:
`make test-compilers` or `make test-cuda13`.
"""

import importlib.util
import json

import pytest

from train.dry_run import topology

PACKAGES = {"v5e:2x2": "libtpu", "h100x4": f"jax_cuda{topology.cuda()}_plugin"}
# Megabytes of gradients and activations on a device of either that libtpu 0.0.42.1 and jax-cuda12-plugin 0.10.2
# planned; a tenth more is allowed, and another version of a compiler may need other figures. The loop over a call's
# steps takes 3 to 9 of those of vit_digits, gpt_pydoc and cnn_digits on a v5e, and no more of a larger GPT's.
PLANNED = {
    "vit_digits.py": (22.0, 4.15),
    "gpt_pydoc.py:neural(dim=2)": (21.7, 34.5),
    "mlm_pydoc.py": (15.6, 37.1),
    "classify_imdb.py": (5.65, 5.2),
    "translate_dates.py": (13.6, 35.7),
    "seq2seq_dates.py": (9.94, 68.6),
    "cnn_digits.py": (9.23, 1.29),
}
PROGRAM = """
import json, sys
from attention.mesh import compiled_for
from train import loading
from train.dry_run import dry, topology
devices = topology.devices(sys.argv[1])
with compiled_for(devices[0]):
    for name in sys.argv[2:]:
        run = dry.DryRun.of(loading.resolve("configs/" + name, {})[0], devices)
        print(json.dumps([name, run.memory(run.compile())]), flush=True)
"""


@pytest.mark.more
@pytest.mark.parametrize("chips", PACKAGES)
def test_a_step_of_every_kind_of_model_compiles_and_takes_no_more_memory_than_it_did(chips, run_python):
    if importlib.util.find_spec(PACKAGES[chips]) is None:
        pytest.skip("the compiler is missing: make test-compilers installs it")
    lines = map(json.loads, run_python("-c", PROGRAM, chips, *PLANNED).stdout.splitlines())
    planned = {name: sizes["gradients and activations"] / 1e6 for name, sizes in lines}
    assert planned.keys() == PLANNED.keys()
    place = list(PACKAGES).index(chips)
    assert {name: size for name, size in planned.items() if size > 1.1 * PLANNED[name][place]} == {}
