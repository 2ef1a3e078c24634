"""Functions of scores by name: a row of the table, as `soft_cap(cap=30.0)`, or one in a file, `my.py:Mine`."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from attention import score, specs
from attention.defining import files
from attention.defining.definition import check_definition, reads_source
from attention.defining.table import ALIASES, SCORES
from attention.errors import UsageError, unknown
from attention.parameters import Params, Sizes
from attention.score import Mixer


@functools.cache
def _of_table(text: str) -> Mixer:
    items = specs.parse(text)
    if len(items) != 1:
        raise UsageError(f"There is one score, not {text!r}; name one of {', '.join(SCORES)}.")
    name = ALIASES.get(items[0].name, items[0].name)
    if name not in SCORES:
        wrong = unknown("score", items[0].name, SCORES)
        raise UsageError(
            f"{wrong} One with projections of its own is a layer: models.layers.MultiHeadAttention({name!r})."
        )
    default = SCORES[name].score
    specs.check_options(items[0], type(default))
    return dataclasses.replace(default, **items[0].options)


def mixer_of(mixer: Mixer | type[Mixer] | str) -> Mixer:
    """Makes what a string names, or a class with its default options, and checks the definition.

    Raises:
      UsageError: nothing has the name or the option, the string has several items, or the definition is wrong.
    """
    if isinstance(mixer, str) and not files.is_of_file(mixer):
        return _of_table(mixer)
    if isinstance(mixer, str):
        (item,) = specs.parse(mixer)
        mixer = specs.build(item, {item.name: files.load(item.name)}, "score")
    made = mixer() if isinstance(mixer, type) else mixer
    check_definition(made)
    return made


def attend(mixer: Mixer | type[Mixer] | str, params: Params, query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Calls `attention.score.attend`, which lists the options, with a score, a recurrence, or a string that names one.

    Args:
      mixer: Such as `Alibi(learned=True)`, `'alibi(learned=True)'`, or what `attention.pair` has made.
      params: Its arrays by name, as `init` makes them.
      query: Queries `(*B, T, N, H)`.
      key: Keys `(*B, S, K, H)`, or None for a score that reads none.
      value: Values `(*B, S, K, V)`.
      **options: `mask`, `bias`, `dropout_rate`, `dropout_key`, `return_weights`, `implementation`, `layer`, `depth`
        and `source`.
    """
    made = _with_source(mixer, query, options)
    return score.attend(made, params, query, key, value, **options)


def advance(
    mixer: Mixer | type[Mixer] | str,
    params: Params,
    query: Any,
    key: Any,
    value: Any,
    state: Any = None,
    **options: Any,
) -> tuple[jax.Array, Any]:
    """Calls `attention.score.advance`, which continues a recurrence, or a string that names one, from a state.

    Args:
      mixer: Such as `GatedDelta()` or `'gated_delta'`.
      params: Its arrays by name, as `init` makes them.
      query: Queries `(*B, T, N, H)` of the next tokens.
      key: Keys `(*B, T, K, H)`.
      value: Values `(*B, T, K, V)`.
      state: The state after the tokens before, or None before the first.
      **options: `source` and `mask`.
    """
    return score.advance(_with_source(mixer, query, options), params, query, key, value, state, **options)


def _with_source(mixer: Mixer | type[Mixer] | str, query: Any, options: dict[str, Any]) -> Mixer:
    """Makes a mechanism; raises UsageError where it reads the layer's inputs and none are given."""
    made = mixer_of(mixer)
    if options.get("source") is None and reads_source(made):
        raise UsageError(
            f"{made.title} also reads the layer's inputs, from which its gates are projected; give them as source, an "
            f"array (*B, S, D) with D as model={query.shape[-1] * query.shape[-2]} in attention.init."
        )
    return made


def init(
    mixer: Mixer | type[Mixer] | str, key: PRNGKeyArray, heads: int, head: int, *, length: int = 0, model: int = 0
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
    made = mixer_of(mixer)
    declared = made.arrays(Sizes(model or heads * head, heads, head, length))
    if not length and any(0 in p.shape for p in declared.values()):
        raise UsageError(f"{made.title} has a table over positions; give init the length of the longest sequence.")
    keys = jax.random.split(key, max(1, len(declared)))
    return {name: p.init(k, p.shape, jnp.float32) for k, (name, p) in zip(keys, declared.items(), strict=False)}
