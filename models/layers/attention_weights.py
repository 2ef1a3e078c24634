"""The attention weights of every layer of a model, for analysis and pictures."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from attention.errors import UnsupportedError


def attention_weights(model: nn.Module, params: dict[str, Any], *inputs: Any) -> dict[str, Float[Array, "B N _ _"]]:
    """Computes the weights of each attention layer; see `output_and_weights`."""
    return output_and_weights(model, params, *inputs)[1]


def output_and_weights(
    model: nn.Module, params: dict[str, Any], *inputs: Any
) -> tuple[Any, dict[str, Float[Array, "B N _ _"]]]:
    """Applies a model, and gives the weights of each attention layer by path, such as `block_0/attention`, in order.

    Args:
      model: Any model, unbound.
      *inputs: Its inputs, without `train`.

    Raises:
      UnsupportedError: the model has no attention between tokens.
    """
    output, kept = _run(model, params, *inputs)
    weights = {
        jax.tree_util.keystr(path[:-1], simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(kept)
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


def weights_asked_of(module: nn.Module) -> bool:
    """Tells whether a layer's weights are asked for, which `keep_weights` then takes."""
    return module.is_mutable_collection("attention") and not module.is_initializing()


def keep_weights(module: nn.Module, weights: Float[Array, "B N _ _"]) -> None:
    """Keeps the weights of a layer for `output_and_weights`."""
    module.sow("attention", "weights", weights, reduce_fn=lambda _, new: new, init_fn=lambda: None)
