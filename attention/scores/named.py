"""Scores and recurrences by name: the name of the class in small letters, such as `alibi` or `soft_cap(cap=30.0)`."""

import functools
import importlib
import pkgutil
import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from attention import recurrences, score, scores, specs
from attention.parameters import Params, Sizes
from attention.score import Mixer


@functools.cache
def classes() -> dict[str, type[Mixer]]:
    """Finds every class of `attention.scores` and `attention.recurrences` that can be made, by name."""
    found = {}
    for package in (scores, recurrences):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for cls in vars(importlib.import_module(module.name)).values():
                if isinstance(cls, type) and issubclass(cls, Mixer) and "__dataclass_params__" in vars(cls):
                    found[re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()] = cls
    found.pop("score")  # their base
    return found


@functools.cache
def named(text: str) -> Mixer:
    """Makes what a string names.

    Raises:
      UsageError: nothing has the name or the option, or the string has several items.
    """
    return specs.make(text, classes(), "score")


def attend(mixer: Mixer | str, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Calls `attention.score.attend`, which lists the options, with a score, a recurrence, or a string that names one.

    Args:
      mixer: Such as `Alibi(learned=True)` or `'alibi(learned=True)'`.
      params: Its arrays by name, as `init` makes them.
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`, or None for a score that reads none.
      value: Values `(*B, S, K, V)`.
      **options: `mask`, `bias`, `dropout_rate`, `dropout_key`, `return_weights`, `implementation` and `source`.
    """
    return score.attend(named(mixer) if isinstance(mixer, str) else mixer, params, query, key, value, **options)


def init(
    mixer: Mixer | str, key: PRNGKeyArray, heads: int, head: int, *, length: int = 0, model: int = 0
) -> dict[str, jax.Array]:
    """Makes initial arrays in float32.

    Args:
      mixer: A score, a recurrence, or a string that names one.
      key: A random key.
      heads: N.
      head: H.
      length: ℓ, for tables over positions.
      model: D, for gates that are projected from a layer's input; N·H by default.
    """
    mixer = named(mixer) if isinstance(mixer, str) else mixer
    declared = mixer.arrays(Sizes(model or heads * head, heads, head, length))
    keys = jax.random.split(key, max(1, len(declared)))
    return {name: p.init(k, p.shape, jnp.float32) for k, (name, p) in zip(keys, declared.items(), strict=False)}
