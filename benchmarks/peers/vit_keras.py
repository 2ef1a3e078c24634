"""The ViT of the speed comparison in Keras 3 on its JAX backend, with keras.layers.MultiHeadAttention.

It is the model of the keras.io example (pre-norm blocks, attention with dropout) with a class token instead of
flattening, trained by `Model.train_on_batch`, which calls the function that Keras compiles for `fit`.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from flax import traverse_util
from keras import layers, ops

from models.vit import ViT, ViTConfig

Params = Mapping[str, Any]
RENAMED = {  # Keras's names of weights, and ours
    "tokens/class_token": "class_token",
    "tokens/positions": "positions/table",
    "attention_output": "out",
    "gamma": "scale",
    "beta": "bias",
}


class KerasTokens(layers.Layer):
    """Puts the class token before the patches, and adds positions."""

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the two weights for patches (batch, patches, width)."""
        self.class_token = self.add_weight(shape=(1, 1, shape[-1]), name="class_token")
        self.positions = self.add_weight(shape=(1, shape[1] + 1, shape[-1]), name="positions")

    def call(self, x: Any) -> Any:
        """Computes the tokens, (batch, 1 + patches, width)."""
        first = ops.broadcast_to(self.class_token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([first, x], axis=1) + self.positions


def _patches(images: Any, patch: int) -> Any:
    """Splits images (batch, rows, columns, channels) into flattened patches, both in row-major order."""
    _, rows, columns, c = images.shape
    x = layers.Reshape((rows // patch, patch, columns // patch, patch, c))(images)
    return layers.Reshape((-1, patch * patch * c))(layers.Permute((1, 3, 2, 4, 5))(x))


def _block(x: Any, name: str, config: ViTConfig) -> Any:
    """Applies one pre-norm block."""
    h = layers.LayerNormalization(epsilon=config.norm_epsilon, name=f"{name}.norm_attention")(x)
    width, dropout = config.width // config.heads, config.dropout
    attention = layers.MultiHeadAttention(
        config.heads, width, dropout=config.attention_dropout, name=f"{name}.attention"
    )
    x = layers.Add()([x, layers.Dropout(dropout)(attention(h, h))])
    h = layers.LayerNormalization(epsilon=config.norm_epsilon, name=f"{name}.norm_mlp")(x)
    h = layers.Dropout(dropout)(layers.Dense(config.mlp, activation=_gelu, name=f"{name}.mlp.up")(h))
    return layers.Add()([x, layers.Dropout(dropout)(layers.Dense(config.width, name=f"{name}.mlp.down")(h))])


def _gelu(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=False)


def _model(size: tuple[int, ...], config: ViTConfig, classes: int) -> keras.Model:
    """Builds the model; its layers are named as in the parameters, with dots."""
    images = keras.Input(size)
    x = KerasTokens(name="tokens")(layers.Dense(config.width, name="embed")(_patches(images, config.patch)))
    x = layers.Dropout(config.embedding_dropout)(x)
    for layer in range(config.depth):
        x = _block(x, f"block_{layer}", config)
    x = layers.LayerNormalization(epsilon=config.norm_epsilon, name="norm")(x[:, 0])
    return keras.Model(images, layers.Dense(classes, name="head")(x))


def _set_weights(model: keras.Model, params: Params) -> None:
    """Copies the parameters into the weights of the same names."""
    arrays = traverse_util.flatten_dict(params, sep="/")
    for weight in model.trainable_weights:
        path = weight.path.replace(".", "/")
        for theirs, ours in RENAMED.items():
            path = path.replace(theirs, ours)
        weight.assign(arrays[path].reshape(weight.shape))


def make_step(
    params: Params, model: ViT, size: tuple[int, ...], learning_rate: float, weight_decay: float
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Makes a training step of a model's twin in Keras, a function of images (B, *size) and labels (B,)."""
    twin = _model(size, model.config, model.classes)
    _set_weights(twin, params)
    twin.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=weight_decay, epsilon=1e-8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def step(images: np.ndarray, labels: np.ndarray) -> float:
        return float(twin.train_on_batch(images, labels))

    return step
