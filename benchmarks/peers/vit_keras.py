"""The ViT of the speed comparison in Keras 3 on its JAX backend, with keras.layers.MultiHeadAttention.

The model of the keras.io example (pre-norm blocks, attention with dropout) with a class token instead of flattening,
trained by `Model.train_on_batch`, which calls the same function that Keras compiles for `fit`.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
from keras import layers, ops

Params = Mapping[str, Any]


class KerasTokens(layers.Layer):
    """Puts the class token before the patches and adds the positions."""

    def build(self, shape: tuple[int, ...]) -> None:
        """Makes the two weights for patches (batch, patches, width)."""
        self.class_token = self.add_weight(shape=(1, 1, shape[-1]), name="class_token")
        self.positions = self.add_weight(shape=(1, shape[1] + 1, shape[-1]), name="positions")

    def call(self, x: Any) -> Any:
        """Returns the tokens, (batch, 1 + patches, width)."""
        first = ops.broadcast_to(self.class_token, (ops.shape(x)[0], 1, x.shape[-1]))
        return ops.concatenate([first, x], axis=1) + self.positions


def _patches(images: Any, patch: int) -> Any:
    """Splits images (batch, rows, columns, channels) into patches in row-major order, each flattened the same way."""
    _, rows, columns, c = images.shape
    x = layers.Reshape((rows // patch, patch, columns // patch, patch, c))(images)
    return layers.Reshape((-1, patch * patch * c))(layers.Permute((1, 3, 2, 4, 5))(x))


def _block(x: Any, name: str, width: int, heads: int, mlp: int, dropout: float) -> Any:
    """Applies one pre-norm block; its layers are named as in the parameters."""
    h = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm_attention")(x)
    attention = layers.MultiHeadAttention(heads, width // heads, dropout=dropout, name=f"{name}_attention")
    x = layers.Add()([x, layers.Dropout(dropout)(attention(h, h))])
    h = layers.LayerNormalization(epsilon=1e-6, name=f"{name}_norm_mlp")(x)
    h = layers.Dropout(dropout)(layers.Dense(mlp, activation=_gelu, name=f"{name}_up")(h))
    return layers.Add()([x, layers.Dropout(dropout)(layers.Dense(width, name=f"{name}_down")(h))])


def _gelu(x: Any) -> Any:
    return keras.activations.gelu(x, approximate=False)


def _model(
    size: tuple[int, ...], depth: int, width: int, heads: int, mlp: int, patch: int, classes: int, dropout: float
) -> keras.Model:
    images = keras.Input(size)
    x = KerasTokens(name="tokens")(layers.Dense(width, name="embed")(_patches(images, patch)))
    for i in range(depth):
        x = _block(x, f"block_{i}", width, heads, mlp, dropout)
    x = layers.LayerNormalization(epsilon=1e-6, name="norm")(x[:, 0])
    return keras.Model(images, layers.Dense(classes, name="head")(x))


def _set_weights(model: keras.Model, params: Params, depth: int) -> None:
    """Copies the arrays of `params` into the layers of the same names."""
    dense, norm = ("kernel", "bias"), ("scale", "bias")

    def put(layer: str, *groups: tuple[Params, tuple[str, ...]]) -> None:
        model.get_layer(layer).set_weights([group[name] for group, names in groups for name in names])

    put("tokens", (params, ("class_token", "positions")))
    put("embed", (params["embed"], dense))
    put("norm", (params["norm"], norm))
    put("head", (params["head"], dense))
    for name in (f"block_{i}" for i in range(depth)):
        block = params[name]
        put(f"{name}_attention", *((block["attention"][part], dense) for part in ("query", "key", "value", "out")))
        for part in ("norm_attention", "norm_mlp"):
            put(f"{name}_{part}", (block[part], norm))
        for part in ("up", "down"):
            put(f"{name}_{part}", (block["mlp"][part], dense))


def make_step(
    params: Params,
    *,
    depth: int,
    width: int,
    heads: int,
    mlp: int,
    patch: int,
    classes: int,
    dropout: float,
    learning_rate: float,
    weight_decay: float,
) -> Callable[[np.ndarray, np.ndarray], float]:
    """Returns a training step in Keras: a function from images (B, 32, 32, 3) and labels (B,) to the loss.

    The model starts from `params`, a nested dict of arrays.
    """
    model = _model((32, 32, 3), depth, width, heads, mlp, patch, classes, dropout)
    _set_weights(model, params, depth)
    model.compile(
        optimizer=keras.optimizers.AdamW(learning_rate, weight_decay=weight_decay, epsilon=1e-8),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )

    def step(images: np.ndarray, labels: np.ndarray) -> float:
        return float(model.train_on_batch(images, labels))

    return step
