"""The attention weights of every layer of a model, for analysis and pictures."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from attention.errors import UnsupportedError

Weights = dict[str, Float[Array, "B N _ _"]]


def attention_weights(model: nn.Module, params: dict[str, Any], *inputs: Any) -> Weights:
    """Computes the weights of each attention layer; see `output_and_weights`."""
    return output_and_weights(model, params, *inputs)[1]


def output_and_weights(model: nn.Module, params: dict[str, Any], *inputs: Any) -> tuple[Any, Weights]:
    """Applies a model and returns its output with the weights of each attention layer.

    Args:
      model: Any model, unbound.
      *inputs: Its inputs, without `train`.

    Returns:
      The output, and the weights by path, such as `block_0/attention`, in the layers' order.

    Raises:
      UnsupportedError: the model has no attention between tokens.
    """
    output, collected = _run(model, params, *inputs)
    weights = {
        jax.tree_util.keystr(path[:-1], simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(collected)
    }
    if not weights:
        raise UnsupportedError(
            f"A {type(model).__name__} has no attention weights between tokens; choose another model."
        )
    return output, {path: weights[path] for path in sorted(weights, key=_numbers)}


@functools.partial(jax.jit, static_argnums=0)
def _run(model: nn.Module, params: dict[str, Any], *inputs: Any) -> tuple[Any, dict[str, Any]]:
    output, variables = model.apply({"params": params}, *inputs, mutable="attention")
    return output, variables.get("attention", {})


def _numbers(path: str) -> list[tuple[int, str]]:
    """Makes a sorting key that puts `block_10` after `block_2`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path)]


def is_collected(module: nn.Module, collection: str) -> bool:
    """Tells whether the caller of `apply` asks for a collection, such as `attention`."""
    return module.is_mutable_collection(collection) and not module.is_initializing()


def collect(module: nn.Module, collection: str, name: str, value: jax.Array) -> None:
    """Adds an array of a layer to a collection."""
    module.sow(collection, name, value, reduce_fn=lambda _, new: new, init_fn=lambda: None)
