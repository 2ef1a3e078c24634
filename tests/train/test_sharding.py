"""One device or eight, whatever is split: the same losses; and what does not divide is said first."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from attention import UsageError
from tests.train.conftest import arguments, record
from train.config import MeshConfig
from train.sharding import check_divisible, make_mesh, parameter_spec

OPTIONS = {
    "train__length": "20 steps",
    "train__log_every": "1 step",
    "train__eval_every": "20 steps",
    "train__checkpoint_every": "0 steps",
    "data__train_transforms": "pad_crop(padding=1)|rotate(degrees=10)",
    "model__dropout": 0.2,
    "model__attention_dropout": 0.2,
}
MESHES = [(8, 1, 1), (1, 8, 1), (2, 2, 2), (2, 1, 4)]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    import subprocess
    import sys

    workdir = tmp_path_factory.mktemp("one") / "run"
    subprocess.run([sys.executable, "-m", "train.main", *arguments(workdir, **OPTIONS)], check=True)
    return workdir


def losses(workdir):
    return np.array([line["loss"] for line in record(workdir) if line["split"] == "train"])


@pytest.mark.parametrize("mesh", MESHES)
def test_eight_devices_train_as_one(one_device, tmp_path, run_python, mesh):
    axes = dict(zip(("mesh__data", "mesh__fsdp", "mesh__tensor"), mesh, strict=True))
    done = run_python("-m", "train.main", *arguments(tmp_path / "run", **OPTIONS, **axes), devices=8)
    assert f"mesh data {mesh[0]} x fsdp {mesh[1]} x tensor {mesh[2]}" in done.stdout
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(one_device), rtol=0, atol=1e-5)
    assert len(losses(one_device)) == 20
    assert losses(one_device)[-1] < losses(one_device)[0]


def test_parameters_are_really_split(run_python):
    code = """
import jax
from train import configs, loop, replicas, sharding, tasks
plain = configs.load("configs/vit_digits.py")
plain.mesh.update(data=2, fsdp=2, tensor=2)
config = configs.validate(plain.to_dict())
mesh = sharding.make_mesh(config.mesh)
task = tasks.find(config.task)(config)
trainer = loop.make_trainer(config, task, loop.Plan.of(config, task.train_examples))
with jax.set_mesh(mesh):
    state = replicas.Replicas([0], mesh).init(trainer, task)
def part(x): return x.addressable_shards[0].data.shape
for params in (state.params, state.ema, state.opt_state[1].mu):
    block = params["block_0"]
    assert part(block["attention"]["query"]["kernel"]) == (32, 2, 16)
    assert part(block["attention"]["out"]["kernel"]) == (2, 16, 32)
    assert part(block["mlp"]["up"]["kernel"]) == (32, 128)
    assert part(block["mlp"]["down"]["kernel"]) == (128, 32)
    assert part(params["head"]["bias"]) == (10,)
print("split")
"""
    assert "split" in run_python("-c", code, devices=8).stdout


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("params/block_3/attention/query/kernel", (64, 4, 16), P("fsdp", "tensor", None)),
        ("params/decoder_1/cross/key/kernel", (64, 4, 16), P("fsdp", "tensor", None)),
        ("opt_state/1/mu/block_3/attention/out/kernel", (4, 16, 64), P("tensor", None, "fsdp")),
        ("params/block_0/attention/align_kernel", (16, 16), P("fsdp", None)),
        ("params/block_0/attention/query/kernel", (63, 3, 16), P(None, None, None)),
        ("params/positions/table", (1, 16, 64), P(None, None, None)),
        ("step", (), P()),
    ],
)
def test_rules(path, shape, spec):
    class Mesh:
        shape = {"data": 1, "fsdp": 2, "tensor": 4}  # noqa: RUF012

    assert parameter_spec(path, shape, Mesh) == spec


def test_an_axis_may_take_the_rest_and_the_product_must_fit():
    assert dict(make_mesh(MeshConfig(-1, 1, 1)).shape) == {"data": jax.device_count(), "fsdp": 1, "tensor": 1}
    with pytest.raises(UsageError, match=r"mesh.data=1, mesh.fsdp=2, mesh.tensor=1 does not fit the 1 devices"):
        make_mesh(MeshConfig(1, 2, 1))
    with pytest.raises(UsageError, match=r"mesh.fsdp must be at least 1, or -1 for the rest, but it is 0"):
        MeshConfig(1, 0, 1)


def test_what_does_not_divide_is_named():
    check_divisible({"model.heads": (4, "mesh.tensor", 2)})
    with pytest.raises(
        UsageError, match=r"model.heads=3 does not divide over mesh.tensor = 2; make it a multiple of 2"
    ):
        check_divisible({"model.heads": (3, "mesh.tensor", 2)})
