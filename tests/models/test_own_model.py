"""A model is one file and one row: this file and its row are trained, evaluated, and counted."""

import dataclasses
import json

import flax.linen as nn
import jax.numpy as jnp
import pytest

from attention import operations
from attention.types import Count
from models.config import ModelConfig
from models.fields import field
from models.layers import MultiHeadAttention
from models.layers.projections import Dense
from models.mechanisms import resolve
from tests.train.conftest import arguments
from train import evaluate, main
from train.tasks.image_classification import ImageClassification

WIDTH, HEADS, ROWS, COLUMNS, CLASSES = 8, 2, 8, 8, 10
CONFIG = """
from configs import defaults

def get_config(attention="dot_product"):
    config = defaults.image_classification("rows")
    config.model.attention = attention
    return config
"""


@dataclasses.dataclass(frozen=True)
class RowsConfig(ModelConfig):
    """The config of a model whose tokens are the rows of an image."""

    name: str = field("rows", "Which model it is.")
    attention: str = field("dot_product", "Mechanism spec string.")
    width: Count = field(WIDTH, "D.")

    def build(self, image_shape, classes, dtype=jnp.float32):
        return Rows(self, classes, image_shape[0], dtype)

    def cost(self, image_shape, classes):
        length, columns, _ = image_shape
        (mechanism,) = resolve(self.attention, 1)
        embed = operations.linear(length, columns, self.width).of_data
        return embed + mechanism.cost(length, self.width, HEADS) + operations.linear(1, self.width, classes)


class Rows(nn.Module):
    """One layer of attention between the rows of an image, and the mean of what it gives."""

    config: RowsConfig
    classes: int
    length: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, images, train=False):
        x = Dense((self.config.width,), dtype=self.dtype, name="rows")(images[..., 0])
        x = MultiHeadAttention(self.config.attention, HEADS, self.length, dtype=self.dtype, name="attention")(x)
        return Dense((self.classes,), dtype=self.dtype, name="head")(x.mean(axis=1)).astype(jnp.float32)


def test_it_trains_is_evaluated_and_counted(monkeypatch, tmp_path):
    monkeypatch.setitem(ImageClassification.model_types, "rows", RowsConfig)
    (tmp_path / "rows.py").write_text(CONFIG)
    changes = {"config": f"{tmp_path}/rows.py:efficient", "train__length": "3 steps", "train__eval_every": "3 steps"}
    flags = arguments(tmp_path / "run", **changes)
    assert main.main([flag for flag in flags if not flag.startswith("--config.model.")]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert evaluate.evaluate(tmp_path / "run", "last", "test")[1]["loss"] == pytest.approx(
        result["final"]["test"]["loss"], rel=1e-6
    )
    assert (result["attention"], result["tokens"]) == ("efficient", ROWS)
    layer, ends = 2 * (WIDTH * WIDTH + WIDTH), COLUMNS * WIDTH + WIDTH + WIDTH * CLASSES + CLASSES
    assert (result["attention_layer_parameters"], result["parameters"]) == (layer, layer + ends)
