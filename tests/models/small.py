"""Small models for tests: one set of fields, of which a test says what is its own; parameters; a compiled pass."""

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from models.transformer import TransformerConfig

Config = TypeVar("Config", bound=TransformerConfig)
FIELDS = {
    "attention": "dot_product",
    "implementation": "xla",
    "depth": 2,
    "width": 16,
    "heads": 2,
    "mlp": 32,
    "norm": "pre",
    "norm_epsilon": 1e-5,
    "positions": "learned",
    "activation": "gelu",
    "embedding_dropout": 0.0,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "attention_bias": True,
    "scan": False,
    "remat": "none",
}


def small(config: type[Config], **own: object) -> Config:
    """A config without dropout, with a test's own fields."""
    return config(**FIELDS | own)


def apply(module: nn.Module, variables: Any, *arrays: Any, **options: Any) -> Any:
    """`module.apply`, compiled as a whole: operation by operation, a small model takes three times as long."""
    return jax.jit(lambda *arrays: module.apply(*arrays, **options))(variables, *arrays)


def in_parts(step: Callable[..., Any], tokens: jax.Array, cache: Any, ends: Iterable[int]) -> tuple[jax.Array, Any]:
    """Gives tokens to a step with a cache, up to one end after the other; returns all outputs and the last cache."""
    outs = []
    for start, end in itertools.pairwise((0, *ends)):
        out, cache = step(tokens[:, start:end], cache)
        outs.append(out)
    return jnp.concatenate(outs, axis=1), cache


def random_params(module: nn.Module, *inputs: Any, seed: int = 0) -> Any:
    """Parameters as `random_like` makes them."""
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs)
    return random_like(_shapes(module, shapes, jax.config.jax_enable_x64), seed)


@functools.cache
def _shapes(module: nn.Module, inputs: tuple[Any, ...], x64: bool) -> Any:
    return jax.eval_shape(module.init, jax.random.key(0), *inputs)


def random_like(shapes: Any, seed: int = 0) -> Any:
    """Parameters of which every one counts: initial biases are zero, and embeddings small. Nothing is compiled."""
    noise = np.random.default_rng(seed)

    def fill(path, leaf):
        middle = 1.0 if path[-1].key == "scale" else 0.0
        return jnp.asarray(noise.normal(middle, 0.3, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, shapes)
