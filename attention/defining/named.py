"""Functions of scores by name: a row of the table, as `soft_cap(cap=30.0)`, or one in a file, `my.py:Mine`."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from attention import score, specs
from attention.defining import files
from attention.defining.definition import check_definition, reads_source
from attention.defining.table import ALIASES, SCORES
from attention.errors import UsageError, unknown
from attention.forms import Tokens
from attention.mask import Mask
from attention.options import as_mask
from attention.parameters import Params, Sizes, trail
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
    made = _with_source(mixer, query, options.get("source"))
    return score.attend(made, params, query, key, value, **options)


def advance(
    mixer: Mixer | type[Mixer] | str,
    params: Params,
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S M V"] | None,
    state: Any = None,
    *,
    source: Float[Array, "*B S D"] | None = None,
    mask: Mask | None = None,
) -> tuple[Float[Array, "*B T _ V"], Any]:
    """Computes causal self-attention of the next tokens by a recurrence, from a state to the state after them.

    A sequence in parts, with the state from call to call, gives what the whole gives, gradients through the state
    included.

    Args:
      mixer: A recurrence, or a string that names one, such as `'gated_delta'`.
      params: Its arrays by name, as `init` makes them.
      query: Queries of the T tokens.
      key: Keys, K divides N.
      value: Values, M = K but for a recurrence with groups of its own; None for prepared keys as values.
      state: What a call gave for the tokens before, or None before the first.
      source: The inputs of the tokens, for gates that are projected from them.
      mask: Key lengths and segments, with the number of tokens before as `query_offset`. Lengths count these tokens
        too, and `key_segments` begins with theirs, so that a segment that begins with the first token is seen as one.

    Raises:
      UsageError: the mixer is no recurrence, the shapes or the state do not fit, or the mask is of another kind.
    """
    made, mask = _with_source(mixer, query, source), dataclasses.replace(as_mask(mask), causal=True)
    score.check_given(made, params, query, key, value, source)
    first, tokens = mask.query_offset, query.shape[-3]
    if key.shape[-3] != tokens:
        raise UsageError(f"A state advances by as many keys as queries, not {key.shape[-3]} and {tokens}.")
    if mask.key_lengths is not None:
        real = mask.real_keys(tokens, first)
        key, value, source = jax.tree.map(lambda x: jnp.where(trail(real, x.ndim), x, 0), (key, value, source))
    query = made.prepare_query(params, query, Tokens(first, query if source is None else source))
    key = made.prepare_key(params, key, Tokens(first, key if source is None else source))
    step = functools.partial(made.advance, params, query, key, key if value is None else value, mask=mask)
    if state is not None:
        _check_state(made, state, jax.eval_shape(lambda: step(state=None)[1]))
    return step(state=state)


def _check_state(mixer: Mixer, state: Any, expected: Any) -> None:
    """Raises UsageError unless a state has the shapes that are expected."""
    given, expected = (jax.tree.map(jnp.shape, x) for x in (state, expected))
    if given != expected:
        raise UsageError(f"The state of {mixer.title} has the shape {expected} here, but was given {given}.")


def _with_source(mixer: Mixer | type[Mixer] | str, query: Any, source: Any) -> Mixer:
    """Makes a mechanism; raises UsageError where it reads the layer's inputs and none are given."""
    made = mixer_of(mixer)
    if source is None and reads_source(made):
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
