"""Run in a process with eight fake devices: losses of 20 steps of one experiment on each mesh, as JSON.

python -m tests.train.on_meshes vit 1x1x1 2x2x2
"""

import contextlib
import json
import math
import sys

import jax

from tests.train.conftest import TINY
from train import configs, loop, sharding, tasks
from train.replicas import Replicas

STEPS = 20
DROPOUT = {"model.dropout": "0.1", "model.attention_dropout": "0.1", "model.embedding_dropout": "0.1"}
COMMON = TINY | DROPOUT | {"model.heads": "8", "data.batch_size": "32", "optimizer.warmup": "2 steps"}
PAIRS = {"data.source": "dates(sources=('en',), targets=('de',), first=2000, last=2003)"}
PAIRS |= {"data.validation_split": "validation[:40]", "data.test_split": "test[:40]"}
MODELS = {
    "vit": (
        "vit_digits",
        {
            "data.train_transforms": "pad_crop(padding=1)|rotate(degrees=10)",
        },
    ),
    "gpt": ("gpt_pydoc", {"data.context": "16", "model.tied_output": "False"}),
    "encoder_decoder": (
        "translate_dates",
        PAIRS | {"model.decoder_depth": "1", "data.buckets": "", "train.ema": "0.9"},
    ),
}


def losses(model: str, shape: str) -> list[float]:
    """Of each step, on the first devices, as many as the shape of the mesh needs: `data x fsdp x tensor`."""
    file, changes = MODELS[model]
    axes = dict(zip(("mesh.data", "mesh.fsdp", "mesh.tensor"), shape.split("x"), strict=True))
    config, _ = configs.resolve(f"configs/{file}.py", COMMON | changes | axes)
    task = tasks.find(config.task)(config)
    trainer = loop.make_trainer(config, task, loop.Plan.of(config, task.train_examples))
    found = []
    mesh = sharding.make_mesh(config.mesh, jax.devices()[: math.prod(map(int, axes.values()))])
    with jax.set_mesh(mesh), contextlib.closing(task.train_batches(0, 1)) as batches:
        replicas = Replicas.of(config, mesh)
        state, step = replicas.init(trainer, task), replicas.train_step(trainer, task)
        for _ in range(STEPS):
            state, report = step(state, replicas.to_devices(next(batches), own=True))
            found.append(float(report["sums"]["loss"] / report["sums"]["weight"]))
        lies = jax.tree.map(
            lambda x, wanted: x.sharding.is_equivalent_to(wanted, x.ndim), state, replicas.shardings(state)
        )
        assert all(jax.tree.leaves(lies)), lies  # as before the first step
    return found


if __name__ == "__main__":
    name, *meshes = sys.argv[1:]
    print(json.dumps({mesh: losses(name, mesh) for mesh in meshes}))
