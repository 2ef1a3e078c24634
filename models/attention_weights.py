"""The attention weights of every layer of a model, for those who want to look at them."""

import functools
import re
from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from attention.errors import UnsupportedError


def attention_weights(model: nn.Module, params: dict[str, Any], *inputs: Any) -> dict[str, Float[Array, "B N _ _"]]:
    """Weights of each attention, by its path such as `block_0/attention`, in the order of the layers.

    Args:
      model: Any model, unbound.
      params: Its parameters.
      *inputs: What it takes, but whether it trains.

    Raises:
      UnsupportedError: the model has no attention between tokens, or a mechanism has no weights.
    """
    found = {
        jax.tree_util.keystr(path[:-1], simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(_kept(model, params, *inputs))
    }
    if not found:
        raise UnsupportedError(
            f"A {type(model).__name__} has no attention weights between tokens; choose another model."
        )
    return {path: found[path] for path in sorted(found, key=_numbers)}


@functools.partial(jax.jit, static_argnums=0)
def _kept(model: nn.Module, params: dict[str, Any], *inputs: Any) -> dict[str, Any]:
    _, kept = model.apply({"params": params}, *inputs, mutable="attention")
    return kept.get("attention", {})


def _numbers(path: str) -> list[tuple[int, str]]:
    """For sorting: `block_10` after `block_2`."""
    return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", path)]
