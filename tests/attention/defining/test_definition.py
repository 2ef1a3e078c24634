"""A wrong definition gets one sentence before anything compiles; a right one is as if written by hand."""

import dataclasses
import pickle

import chex
import jax
import jax.numpy as jnp
import pytest

import attention
from attention import Mask, UsageError, per_head, shared
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.defining.definition import check_definition, knows_absolute_positions, reads_source
from attention.defining.named import mixer_of
from attention.parameters import Parameter
from attention.recurrences.recurrence import Recurrence
from attention.recurrences.selective import KimiDelta, StateSpace
from attention.score import Score
from models.mechanisms import MECHANISMS

ONES = jax.nn.initializers.ones
frozen = dataclasses.dataclass(frozen=True)


@attention.pair
def laplacian(query, key, at, *, tau=per_head(0.1, positive=True), scale=1.0):
    """Compares by the L1 distance."""
    return -tau * scale * jnp.abs(query - key).sum()


@frozen
class ByHand(Score):
    def parameters(self, sizes):
        return {"log_tau": Parameter((sizes.heads,), jax.nn.initializers.constant(jnp.log(0.1)), ("heads",))}

    def pair(self, params, query, key, at):
        return -jnp.exp(params["log_tau"]) * jnp.abs(query - key).sum()


@pytest.mark.parametrize("implementation", ["reference", "xla", "chunked"])
def test_a_function_of_a_pair_is_the_class_to_the_last_bit(implementation):
    arrays = inputs(dtype=jnp.float32)

    def outcome(mixer):
        params = attention.init(mixer, jax.random.key(0), HEADS, WIDTH)
        call = lambda params: attention.attend(  # noqa: E731
            mixer, params, *arrays, mask=Mask(causal=True), implementation=implementation
        )
        return call(params), jax.grad(lambda params: call(params).sum())(params)

    chex.assert_trees_all_equal(outcome(laplacian), outcome(ByHand()))


def test_options_and_shapes_of_a_function_are_those_it_names():
    @attention.pair
    def bilinear(query, key, at, *, weight=shared(ONES, "head", "head"), far=per_head(0.0, 3), sign=True):
        return query @ weight @ key * (1 if sign else -1) + far[jnp.minimum(jnp.abs(at.query - at.key), 2)]

    shapes = jax.tree.map(jnp.shape, attention.init(bilinear(sign=False), jax.random.key(0), HEADS, WIDTH))
    assert shapes == {"weight": (WIDTH, WIDTH), "far": (HEADS, 3)}
    assert laplacian(scale=2.0, normaliser="sigmoid") == laplacian(2.0, normaliser="sigmoid") != laplacian()
    assert pickle.loads(pickle.dumps(laplacian(scale=3.0))) == laplacian(scale=3.0)
    with pytest.raises(UsageError, match="The option scale must be a number, but it is 'two'"):
        laplacian(scale="two")


def _nothing(query, key, at):
    pass


def _without_at(query, key):
    return query @ key


def _vector(query, key, at):
    return query - key


def _undeclared(query, key, at, *, tau):
    return tau * query @ key


def _too_narrow(query, key, at, *, weight=per_head(1.0, 3)):
    return weight @ key


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_nothing, "_nothing.pair must return one number for a pair, not nothing"),
        (_without_at, r"must take a query, a key and `at`, .*, but it takes \(query, key\)"),
        (_vector, r"must return one number for a pair, not float32\[8\]; an array with a part for each head"),
        (_undeclared, r"The argument tau of _undeclared needs a default: per_head\(...\) or shared"),
        (_too_narrow, r"_too_narrow.pair fails: TypeError: dot_general .* got \(3,\) and \(8,\)"),
        (3, "decorates a function of a query, a key and `at`, not 3"),
    ],
)
def test_a_wrong_function_is_one_sentence(function, message):
    with pytest.raises(UsageError, match=message):
        attention.pair(function)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: per_head(0, positive=True), "starts at a number above 0, not at 0"),
        (lambda: shared(1.0, "haed"), "whole numbers from 1 on or 'head', not 'haed'"),
    ],
)
def test_a_wrong_declaration_is_one_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def slopes(*shape, over=("heads",)):
    return lambda self, sizes: {"slope": Parameter(shape or (sizes.heads,), ONES, over)}


def dot(self, params, query, key, at):
    return query @ key


def add(self, params, state, key, value, gates):
    return state + jnp.outer(value, key)


def look(self, params, state, query):
    return state @ query


def made(base, **members):
    return frozen(type("Mine", (base,), members))()


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (lambda: made(Score), r"Mine defines no pair\(self, params, query, key, at\)"),
        (lambda: type("Mine", (Score,), {"pair": dot})(), "must be a frozen dataclass; its fields are options"),
        (lambda: ByHand, r"must be an object, not a class; write ByHand\(\)"),
        (lambda: 3, "A mechanism is a Score or a Recurrence, not 3"),
        (
            lambda: made(Score, parameters=slopes(), pair=lambda self, params, query, key, at: params["sloep"]),
            "Unknown parameter of Mine 'sloep'. Did you mean 'slope'",
        ),
        (lambda: made(Score, parameters=slopes(3), pair=dot), r"for 4 heads it has the shape \(3,\)"),
        (
            lambda: made(Score, parameters=slopes(4, over=("heads", "keys")), pair=dot),
            "is over heads, keys, so its shape has an axis for each",
        ),
        (lambda: made(Score, parameters=lambda self, sizes: [1], pair=dot), "must return a dict of .*Parameter, not"),
        (
            lambda: made(Score, pair=lambda self, params, query, key: query @ key),
            r"Mine.pair must take \(self, params, query, key, at\), but it takes \(self, params, query, key\)",
        ),
        (
            lambda: made(Score, pair=dot, prepare_key=lambda self, params, key, at: key @ jnp.ones(3)),
            "Mine.prepare_key fails: TypeError: dot_general",
        ),
        (
            lambda: made(Score, pair=dot, prepare_query=lambda self, params, query: query),
            r"Mine.prepare_query must take \(self, params, query, at\), but it takes \(self, params, query\)",
        ),
        (
            lambda: made(Score, pair=dot, prepare_query=lambda self, params, query, at: query * params["a"]),
            "Unknown parameter of Mine 'a'. Valid: none",
        ),
        (lambda: made(Recurrence, read=look), "Mine defines no write"),
        (lambda: made(Recurrence, write=add), "Mine defines no read"),
        (
            lambda: made(Recurrence, write=add, read=look, begin=lambda self, head: jnp.zeros(head)),
            r"Mine.begin must take \(self, head, value\), but it takes \(self, head\)",
        ),
        (
            lambda: made(Recurrence, write=lambda self, params, state, key, value, gates: key, read=look),
            r"Mine.write must return a state like the one of begin, float32\[8, 8\], not float32\[8\]",
        ),
        (
            lambda: made(Recurrence, write=add, read=lambda self, params, state, query: state),
            r"Mine.read must return as many numbers as a value has, 8, not float32\[8, 8\]",
        ),
        (
            lambda: made(Recurrence, write=lambda self, p, state, key, value, gates: state * p["a"], read=look),
            "Unknown parameter of Mine 'a'. Valid: none",
        ),
    ],
)
def test_a_wrong_class_is_one_sentence(mixer, message):
    with pytest.raises(UsageError, match=message):
        check_definition(mixer())


@pytest.mark.parametrize("row", MECHANISMS)
def test_every_row_is_a_right_definition(row):
    check_definition(MECHANISMS[row].score)


@pytest.mark.parametrize(
    ("name", "reads"), [("alibi", False), ("retention", False), ("delta", True), ("forgetting", True)]
)
def test_it_is_known_what_reads_the_layers_inputs(name, reads):
    assert reads_source(MECHANISMS[name].score) == reads


def test_functions_of_jax_may_take_all_arrays_as_one_argument():
    @jax.jit
    def scaled(params, x):
        slope = jax.tree.map(jnp.exp, params)["slope"]
        return jnp.broadcast_to(slope[..., None], x.shape) * x

    def prepare(self, params, key, at):
        return scaled(params, key)

    def pair(self, params, query, key, at):
        return query @ scaled(params, key)

    check_definition(made(Score, parameters=slopes(), prepare_key=prepare, pair=pair))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("delta", r"Delta attention also reads the layer's inputs, .* give them as source, .* D as model=24"),
        ("retention", r"cannot honour a mask of kind dense; .* for a causal array write attention.Mask\(causal=True\)"),
    ],
)
def test_a_call_that_a_state_cannot_serve_says_how_to_make_it(name, message):
    params = attention.init(name, jax.random.key(0), HEADS, WIDTH)
    with pytest.raises(UsageError, match=message):
        attention.attend(name, params, *inputs(), mask=jnp.tril(jnp.ones((1, 1, LENGTH, LENGTH), bool)))


def test_a_table_over_positions_needs_a_length():
    with pytest.raises(UsageError, match="Location-based attention has a table over positions; give init the length"):
        attention.init("location", jax.random.key(0), HEADS, WIDTH)


def test_a_mechanism_without_keys_takes_a_source():
    _, _, value = inputs()
    params = attention.init("positional", jax.random.key(0), HEADS, WIDTH, length=LENGTH)
    source = value.reshape(2, LENGTH, -1)
    with_source = attention.attend("positional", params, value, None, value, source=source)
    chex.assert_trees_all_equal(with_source, attention.attend("positional", params, value, None, value))


@pytest.mark.parametrize(
    ("spec", "absolute"),
    [
        ("dot_product", False),
        ("additive", True),
        ("additive(normaliser='hard')", True),
        ("state_space", False),
        ("state_space(conv=2)", True),  # sums of keys that are turned by different angles
    ],
)
def test_it_is_known_what_rotary_positions_make_absolute(spec, absolute):
    assert knows_absolute_positions(mixer_of(spec)) == absolute


@pytest.mark.parametrize(
    "score", [KimiDelta(state=6), StateSpace(groups=3, conv=2), StateSpace(groups=1, state=6, gate="gate_first")]
)
def test_other_sizes_of_a_state_are_no_mistake(score):
    check_definition(score)
    knows_absolute_positions(score)
    assert reads_source(score) == (getattr(score, "groups", 0) != 3)  # which are not for four heads
