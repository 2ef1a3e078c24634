"""What a mechanism's definition must be, found by calling it once with shapes alone, before anything compiles."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention.errors import UsageError, brief, unknown
from attention.forms import At, Tokens
from attention.mask import Mask
from attention.options import Options
from attention.parameters import Parameter, Params, Sizes
from attention.recurrences.recurrence import Recurrence
from attention.score import Mixer, Score
from attention.scores.rotary import Rotary

SIZES = Sizes(model=32, heads=4, head=8, length=6)
Shapes = dict[str, jax.ShapeDtypeStruct]
_TOKENS = 3
_SOURCE = jax.ShapeDtypeStruct((_TOKENS, SIZES.model), jnp.float32)


class Declared(dict):
    """The arrays of a mechanism; reading one that it has not declared raises an error that names it."""

    def __init__(self, title: str, arrays: Params):
        super().__init__(arrays)
        self.title = title

    def __missing__(self, name: str) -> Any:
        raise unknown(f"parameter of {self.title}", name, self)


def check_definition(mixer: Any) -> None:
    """Raises UsageError unless an object is a mechanism that can be computed, in a sentence that says what is wrong.

    A score's `pair`, or a recurrence's `write` and `read`, are called once with abstract arrays. It is no
    mistake if a mechanism does not support the sizes of this call.
    """
    check_kind(mixer)
    _check_once(mixer)


def check_kind(mixer: Any) -> None:
    """Raises UsageError unless an object is a `Mixer`, and a frozen dataclass of plain options."""
    kind = type(mixer)
    if isinstance(mixer, type):
        raise UsageError(f"The score must be an object, not a class; write {mixer.__name__}().")
    if not isinstance(mixer, Mixer):
        raise UsageError(f"A mechanism is a Score or a Recurrence, not {mixer!r}.")
    declared = vars(kind).get("__dataclass_params__")  # its own, not an ancestor's
    if not (declared and declared.frozen):
        raise UsageError(f"The score {kind.__name__} must be a frozen dataclass; its fields are options.")
    try:
        hash(mixer)
    except TypeError as error:
        raise UsageError(f"The options of {kind.__name__} must be plain values, such as tuples, not lists.") from error


@functools.lru_cache(maxsize=256)
def _check_once(mixer: Mixer) -> None:
    if not _takes_sizes(mixer):
        return
    arrays = _arrays(mixer)
    if isinstance(mixer, Score) and type(mixer).attend is Score.attend:
        _check_pair(mixer, arrays)
    elif isinstance(mixer, Recurrence):
        _check_step(mixer, arrays)


def _takes_sizes(mixer: Mixer) -> bool:
    """Tells whether the mechanism itself does not refuse the sizes, such as a number of heads that it cannot group."""
    try:
        _inputs(mixer)
        mixer.parameters(SIZES)
    except UsageError:
        return False
    except Exception:  # a mistake, which `_arrays` names
        return True
    return True


def _inputs(mixer: Mixer) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    """Gives the shapes of some tokens' queries and keys."""
    widths = mixer.widths(SIZES.heads, SIZES.heads, SIZES.head)
    query, key = (jax.ShapeDtypeStruct((_TOKENS, *widths[piece]), jnp.float32) for piece in ("query", "key"))
    return query, key


@functools.lru_cache(maxsize=256)
def reads_source(mixer: Mixer) -> bool:
    """Tells whether queries or keys are prepared with the layer's inputs, such as for gates that are projected."""
    try:
        shapes = {name: jax.ShapeDtypeStruct(p.shape, jnp.float32) for name, p in mixer.arrays(SIZES).items()}
        program = jax.make_jaxpr(functools.partial(_prepare, mixer))(shapes, *_inputs(mixer), _SOURCE).jaxpr
    except UsageError:  # of these sizes
        return False
    return any(program.invars[-1] in equation.invars for equation in program.eqns)


@functools.lru_cache(maxsize=256)
def knows_absolute_positions(mixer: Mixer) -> bool:
    """Tells whether rotary positions make the output depend on where a sequence starts, as scores of q·k do not.

    The rotation cancels only where queries and keys meet in products q·k or in distances ‖q − k‖.
    """
    if not _takes_sizes(mixer):
        return False
    draw = np.random.default_rng(0).standard_normal
    query, key = (jnp.asarray(draw(x.shape), jnp.float32) for x in _inputs(mixer))
    source, values = (
        jnp.asarray(draw((_TOKENS, *x)), jnp.float32) for x in ((SIZES.model,), (SIZES.heads, SIZES.head))
    )
    params = {name: jnp.asarray(draw(p.shape), jnp.float32) for name, p in mixer.arrays(SIZES).items()}
    over = {name: len(p.over) for name, p in mixer.parameters(SIZES).items()}
    own = {name: x[(0,) * over[name]] for name, x in params.items() if name in over}

    @jax.jit
    def compared(first: jax.Array) -> jax.Array:
        at = Tokens(first, source, Rotary())
        queries, keys = mixer.prepare_query(params, query, at), mixer.prepare_key(params, key, at)
        if not isinstance(mixer, Recurrence) and type(mixer).attend is not Score.attend:
            return mixer.attend(params, queries, keys, values, Options(Mask(causal=True)))[2]
        read = jax.tree.map(lambda x: x[2, 0], queries)
        stored = [jax.tree.map(lambda x, token=token: x[token, 0], keys) for token in (0, 1)]
        if isinstance(mixer, Score):
            return mixer.pair(own, read, stored[1], At(*map(jnp.int32, (2, 1, 0)), SIZES.heads, 0, 1))
        read = read[0] if isinstance(read, tuple) else read  # without the gate behind the state
        state = mixer.begin(key.shape[-1], SIZES.head)
        for token, value in zip(stored, jnp.eye(2, SIZES.head), strict=True):
            written, gates = token if isinstance(token, tuple) else (token, None)
            state = mixer.write(own, state, written, value, gates)
        return mixer.read(own, state, read)

    try:
        near, far = compared(0), compared(5)
    except UsageError:  # it is not for these sizes
        return False
    return bool(jnp.abs(near - far).max() > 1e-3 * jnp.abs(near).max())


def _arrays(mixer: Mixer) -> Shapes:
    """Declares the arrays, as shapes."""
    name = type(mixer).__name__
    declared = _called(mixer, "parameters", SIZES)
    if not isinstance(declared, dict) or not all(isinstance(p, Parameter) for p in declared.values()):
        raise UsageError(f"{name}.parameters must return a dict of attention.parameters.Parameter, not {declared!r}.")
    for of, parameter in declared.items():
        if "heads" in parameter.over and parameter.shape[:1] != (SIZES.heads,):
            raise UsageError(
                f"The parameter {of!r} of {name} is over heads, so the first axis of its shape is sizes.heads, but for "
                f"{SIZES.heads} heads it has the shape {parameter.shape}."
            )
        if len(parameter.shape) < len(parameter.over):
            raise UsageError(
                f"The parameter {of!r} of {name} is over {', '.join(parameter.over)}, so its shape has an axis for "
                f"each of them first, but it is {parameter.shape}."
            )
    return {of: jax.ShapeDtypeStruct(p.shape, jnp.float32) for of, p in mixer.arrays(SIZES).items()}


def _check_pair(score: Score, arrays: Shapes) -> None:
    name = type(score).__name__
    if type(score).pair is Score.pair:
        raise UsageError(f"{name} defines no pair(self, params, query, key, at), the score of one query and one key.")
    own = _of_one_head(score, arrays)
    try:
        prepared = jax.eval_shape(functools.partial(_prepare, score), arrays, *_inputs(score), _SOURCE)
    except UsageError:  # it is not for these sizes
        return
    query, key = jax.tree.map(_one, prepared)
    at = At(*[jax.ShapeDtypeStruct((), jnp.int32)] * 3, SIZES.heads, 0, 1)
    found = _called(score, "pair", own, query, key, at)
    if getattr(found, "shape", None) == ():
        return
    hint = "" if found is None else "; an array with a part for each head is declared with over=('heads',)"
    raise UsageError(f"{name}.pair must return one number for a pair, not {_described(found)}{hint}.")


def _check_step(recurrence: Recurrence, arrays: Shapes) -> None:
    name = type(recurrence).__name__
    for method in ("write", "read"):
        if getattr(type(recurrence), method) is getattr(Recurrence, method):
            raise UsageError(f"{name} defines no {method}; see Recurrence.{method}.")
    key, value = _one(_inputs(recurrence)[1]), jax.ShapeDtypeStruct((SIZES.head,), jnp.float32)
    state = jax.eval_shape(lambda: recurrence.begin(key.shape[-1], SIZES.head))
    own = _of_one_head(recurrence, arrays)
    gates = jax.tree.map(_one, _called(recurrence, "gates", arrays, _SOURCE))
    after = _called(recurrence, "write", own, state, key, value, gates)
    if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, state):
        raise UsageError(
            f"{name}.write must return a state like the one of begin, {_described(state)}, not {_described(after)}."
        )
    out = _called(recurrence, "read", own, state, key)
    if getattr(out, "shape", None) != (SIZES.head,):
        raise UsageError(
            f"{name}.read must return as many numbers as a value has, {SIZES.head}, not {_described(out)}."
        )


def _of_one_head(mixer: Mixer, arrays: Shapes) -> Shapes:
    """Takes the parts of one head, query and key."""
    over = {name: len(p.over) for name, p in mixer.parameters(SIZES).items()}
    cut = lambda name, x: jax.ShapeDtypeStruct(x.shape[over.get(name, 0) :], x.dtype)  # noqa: E731
    return {name: cut(name, x) for name, x in arrays.items() if name in over}


def _prepare(mixer: Mixer, params: Params, query: jax.Array, key: jax.Array, source: jax.Array) -> tuple[Any, Any]:
    tokens = Tokens(0, source)
    read = mixer.prepare_query(params, query, tokens) if mixer.traits.reads_query else None
    return read, mixer.prepare_key(params, key, tokens) if mixer.traits.reads_key else None


def _one(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Takes one token and head."""
    return jax.ShapeDtypeStruct(x.shape[2:], x.dtype)


def _called(mixer: Mixer, method: str, *arguments: Any) -> Any:
    """Calls a method with abstract arrays; a mistake in it becomes a sentence."""
    name, call = type(mixer).__name__, getattr(mixer, method)
    try:
        inspect.signature(call).bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(inspect.signature(getattr(_base(mixer), method)).parameters)
        taken = ", ".join(inspect.signature(getattr(type(mixer), method)).parameters)
        raise UsageError(f"{name}.{method} must take ({wanted}), but it takes ({taken}).") from error
    try:
        return _traced(call, name, arguments) if method != "parameters" else call(*arguments)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{name}.{method} fails: {type(error).__name__}: {brief(error)}.") from error


def _base(mixer: Mixer) -> type[Mixer]:
    return Recurrence if isinstance(mixer, Recurrence) else Score


def _traced(call: Callable, name: str, arguments: tuple) -> Any:
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)  # noqa: E731
    leaves, tree = jax.tree.flatten(arguments, is_leaf=is_shape)
    shapes = [x for x in leaves if is_shape(x)]

    def run(*arrays):
        given = iter(arrays)
        params, *rest = jax.tree.unflatten(tree, [next(given) if is_shape(x) else x for x in leaves])
        return call(Declared(name, params), *rest)

    return jax.eval_shape(run, *shapes)


def _described(tree: Any) -> str:
    shapes = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(tree)]
    return " and ".join(shapes) or "nothing"
