"""What a mechanism's definition must be, found by calling it once with shapes alone, before anything compiles."""

import functools
import inspect
from collections.abc import Sequence
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
_PLACE = jax.ShapeDtypeStruct((), jnp.int32)


class Mistake(UsageError):
    """A method of a mechanism that takes other arguments than it must, or that fails; unlike sizes that it refuses."""


@jax.tree_util.register_pytree_node_class
class Declared(dict):
    """The arrays of a mechanism; reading one that it has not declared raises an error that names it."""

    def __init__(self, title: str, arrays: Params):
        super().__init__(arrays)
        self.title = title

    def __missing__(self, name: str) -> Any:
        raise Mistake(str(unknown(f"parameter of {self.title}", name, self)))

    def tree_flatten(self) -> tuple[list[Any], tuple[str, ...]]:
        """Gives the arrays, and the title with their names."""
        return [*self.values()], (self.title, *self)

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], arrays: Sequence[Any]) -> "Declared":
        """Takes what `tree_flatten` gave."""
        return cls(names[0], dict(zip(names[1:], arrays, strict=True)))


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
        raise UsageError(f"A mechanism must be an object, not a class; write {mixer.__name__}().")
    if not isinstance(mixer, Mixer):
        raise UsageError(f"A mechanism is a Score or a Recurrence, not {mixer!r}.")
    declared = vars(kind).get("__dataclass_params__")  # its own, not an ancestor's
    if not (declared and declared.frozen):
        raise UsageError(f"{kind.__name__} must be a frozen dataclass; its fields are options.")
    try:
        hash(mixer)
    except TypeError as error:
        raise UsageError(f"The options of {kind.__name__} must be plain values, such as tuples, not lists.") from error


@functools.lru_cache(maxsize=256)
def _check_once(mixer: Mixer) -> None:
    if not _takes_sizes(mixer):
        return
    given = _arrays(mixer), *_inputs(mixer), _SOURCE
    if isinstance(mixer, Score) and type(mixer).attend is Score.attend:
        jax.eval_shape(functools.partial(_check_pair, mixer), *given, _PLACE)
    elif isinstance(mixer, Recurrence):
        jax.eval_shape(functools.partial(_check_step, mixer), *given)


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
    except Mistake:
        raise
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

    @jax.jit
    def compared(first: jax.Array) -> jax.Array:
        at = Tokens(first, source, Rotary())
        queries, keys = mixer.prepare_query(params, query, at), mixer.prepare_key(params, key, at)
        if isinstance(mixer, Score) and type(mixer).attend is Score.attend:  # weights may be the same, as hard ones
            read, known = jax.tree.map(lambda x: x[2, 0], queries), jax.tree.map(lambda x: x[1, 0], keys)
            place = At(*map(jnp.int32, (2, 1, 0)), SIZES.heads, 0, 1)
            return mixer.pair(_of_one_head(mixer, params), read, known, place)
        options = Options(Mask(causal=True), implementation="reference")
        return mixer.attend(params, queries, keys, values, options)[2]

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


def _check_pair(
    score: Score, params: Params, query: jax.Array, key: jax.Array, source: jax.Array, place: jax.Array
) -> None:
    name = type(score).__name__
    if type(score).pair is Score.pair:
        raise UsageError(f"{name} defines no pair(self, params, query, key, at), the score of one query and one key.")
    try:
        prepared = _prepare(score, params, query, key, source)
    except Mistake:
        raise
    except UsageError:  # it is not for these sizes
        return
    query, key = jax.tree.map(lambda x: x[0, 0], prepared)
    at = At(place, place, place, SIZES.heads, 0, 1)
    found = _called(score, "pair", _of_one_head(score, params), query, key, at)
    if getattr(found, "shape", None) == ():
        return
    hint = "" if found is None else "; an array with a part for each head is declared with over=('heads',)"
    raise UsageError(f"{name}.pair must return one number for a pair, not {_described(found)}{hint}.")


def _check_step(recurrence: Recurrence, params: Params, query: jax.Array, key: jax.Array, source: jax.Array) -> None:
    name = type(recurrence).__name__
    for method in ("write", "read"):
        if getattr(type(recurrence), method) is getattr(Recurrence, method):
            raise UsageError(f"{name} defines no {method}; see Recurrence.{method}.")
    key, value, own = key[0, 0], jnp.zeros(SIZES.head), _of_one_head(recurrence, params)
    state = _called(recurrence, "begin", key.size, SIZES.head)
    gates = _called(recurrence, "gates", Declared(name, params), source)
    after = _called(recurrence, "write", own, state, key, value, jax.tree.map(lambda x: x[0, 0], gates))
    if jax.tree.map(jnp.shape, after) != jax.tree.map(jnp.shape, state):
        raise UsageError(
            f"{name}.write must return a state like the one of begin, {_described(state)}, not {_described(after)}."
        )
    out = _called(recurrence, "read", own, state, key)
    if getattr(out, "shape", None) != (SIZES.head,):
        raise UsageError(
            f"{name}.read must return as many numbers as a value has, {SIZES.head}, not {_described(out)}."
        )


def _of_one_head(mixer: Mixer, params: Params) -> Declared:
    """Takes the parts of one head, query and key."""
    over = {name: (0,) * len(p.over) for name, p in mixer.parameters(SIZES).items()}
    return Declared(type(mixer).__name__, {name: params[name][at] for name, at in over.items()})


def _prepare(mixer: Mixer, params: Params, query: jax.Array, key: jax.Array, source: jax.Array) -> tuple[Any, Any]:
    params, tokens = Declared(type(mixer).__name__, params), Tokens(0, source)
    read = _called(mixer, "prepare_query", params, query, tokens) if mixer.traits.reads_query else None
    return read, _called(mixer, "prepare_key", params, key, tokens) if mixer.traits.reads_key else None


def _called(mixer: Mixer, method: str, *arguments: Any) -> Any:
    """Calls a method with abstract arrays; a mistake in it becomes a sentence."""
    name, call = type(mixer).__name__, getattr(mixer, method)
    try:
        inspect.signature(call).bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(inspect.signature(getattr(_base(mixer), method)).parameters)
        taken = ", ".join(inspect.signature(getattr(type(mixer), method)).parameters)
        raise Mistake(f"{name}.{method} must take ({wanted}), but it takes ({taken}).") from error
    try:
        found = call(*arguments)
        return found if method == "parameters" else jax.tree.map(jnp.asarray, found)
    except UsageError:
        raise
    except Exception as error:
        raise Mistake(f"{name}.{method} fails: {type(error).__name__}: {brief(error)}.") from error


def _base(mixer: Mixer) -> type[Mixer]:
    return Recurrence if isinstance(mixer, Recurrence) else Score


def _described(tree: Any) -> str:
    shapes = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(tree)]
    return " and ".join(shapes) or "nothing"
