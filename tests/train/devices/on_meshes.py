"""Run in a process with eight fake devices: losses of 20 steps of one experiment on each mesh, as JSON.

python -m tests.train.devices.on_meshes vit 1x1x1 2x2x2
"""

import contextlib
import json
import math
import sys
import tempfile
from pathlib import Path

import jax

from tests.train import small_tasks
from train.devices import sharding
from train.devices.replicas import Replicas
from train.step import Trainer
from train.tasks.adapted import adapted

STEPS = 20
COMMON = {"data__batch_size": 32, "model__heads": 8}
COMMON |= {f"model__{name}": 0.1 for name in ("dropout", "attention_dropout", "embedding_dropout")}
# A config of `small_tasks`, and what is special here.
MODELS = {
    "vit": ("vit_digits", {"data__train_transforms": "pad_crop(padding=1)|rotate(degrees=10)"}),
    "gpt": ("gpt_pydoc", {"model__tied_output": False, "train__accumulate": 2}),
    "low_rank": ("gpt_pydoc", {"optimizer__lora": "lora(rank=4, on='.')"}),
    "gpt of one layer": ("gpt_pydoc", {"model__depth": 1}),
    "masked_lm": ("mlm_pydoc", {}),
    "text_classifier": ("classify_imdb", {}),
    "encoder_decoder": ("translate_dates", {"data__buckets": "", "model__decoder_depth": 1, "train__ema": 0.9}),
    "seq2seq": ("seq2seq_dates", {"data__buckets": ""}),
}


def losses(model: str, shape: str) -> list[float]:
    """Of each step, on the first devices, as many as the mesh `data x fsdp x tensor (x context)` needs."""
    file, changes = MODELS[model]
    axes = dict(zip(("mesh__data", "mesh__fsdp", "mesh__tensor", "mesh__context"), shape.split("x"), strict=False))
    with tempfile.TemporaryDirectory() as folder:
        config = small_tasks.config_of(file, Path(folder), **COMMON | changes | axes)
        task = adapted(small_tasks.task_of(config), config)
    trainer = Trainer.of(config, task)
    found = []
    mesh = sharding.make_mesh(config.mesh, jax.devices()[: math.prod(map(int, axes.values()))])
    with jax.set_mesh(mesh), contextlib.closing(task.train_batches(0, 1)) as batches:
        replicas = Replicas.of(config, mesh)
        state, step = replicas.init(trainer, task), replicas.train_step(trainer, task)
        for number in range(STEPS):
            batch = replicas.to_devices(next(batches), stacked=True)
            if config.mesh.context > 1 and not number:
                step = step.lower(state, batch).compile()
                assert "gpt" not in model or "all-gather" not in step.as_text()  # neither tokens nor sequences
            state, report = step(state, batch)
            found.append(float(report["sums"]["loss"] / report["sums"]["weight"]))
        lies = jax.tree.map(
            lambda x, wanted: x.sharding.is_equivalent_to(wanted, x.ndim), state, replicas.shardings(state)
        )
        assert all(jax.tree.leaves(lies)), lies  # as before the first step
    return found


if __name__ == "__main__":
    name, *meshes = sys.argv[1:]
    print(json.dumps({mesh: losses(name, mesh) for mesh in meshes}))
