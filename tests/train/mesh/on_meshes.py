"""Train 20 steps of one experiment on each mesh of eight fake devices, and print the losses as JSON.

python -m tests.train.mesh.on_meshes vit 1x1x1 2x2x2
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import jax

from tests.train import small_tasks
from train.mesh import feeds
from train.setup import Setup

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
    """Trains on as many devices as the mesh `data x fsdp x tensor (x context)` needs; returns each step's loss."""
    file, changes = MODELS[model]
    axes = dict(zip(("mesh__data", "mesh__fsdp", "mesh__tensor", "mesh__context"), shape.split("x"), strict=False))
    with tempfile.TemporaryDirectory() as folder:
        config = small_tasks.config_of(file, Path(folder), **COMMON | changes | axes)
        setup = Setup.of(config, devices=jax.devices()[: math.prod(map(int, axes.values()))])
    found, replicas = [], setup.replicas
    with jax.set_mesh(replicas.mesh), feeds.HostFeed(replicas, setup.task.sources["train"]) as feed:
        (state, _), program = setup.fresh(lambda params: (params, "")), setup.program(feed)
        for number in range(STEPS):
            rows, _ = feed.take(number, 1)
            if not number:
                text = program.compile(state, rows).as_text()
                whole = config.mesh.context == 1 or "gpt" not in model
                assert whole or "all-gather" not in text  # neither tokens nor sequences
            state, report = program(state, rows, 1)
            sums = jax.device_get(report["sums"])
            found.append(float(sums["loss"][0] / sums["weight"][0]))
        lies = jax.tree.map(
            lambda x, wanted: x.sharding.is_equivalent_to(wanted, x.ndim), state, replicas.shardings(state)
        )
        assert all(jax.tree.leaves(lies)), lies  # as before the first step
    return found


if __name__ == "__main__":
    name, *meshes = sys.argv[1:]
    print(json.dumps({mesh: losses(name, mesh) for mesh in meshes}))
