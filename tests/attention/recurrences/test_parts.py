"""Documents in one sequence are those by themselves, and a sequence in parts is the whole, with all gradients."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask, UsageError
from attention.check.subject import HEADS, LENGTH, WIDTH
from attention.parameters import Sizes
from attention.recurrences import state
from attention.recurrences.gated import GatedDelta
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from attention.recurrences.recurrence import Recurrence
from attention.recurrences.selective import StateSpace
from models.layers import MultiHeadAttention
from models.mechanisms import MECHANISMS
from tests.attention.cases import outcome
from tests.sizes import once

MIXERS = {name: row.score for name, row in MECHANISMS.items() if isinstance(row.score, Recurrence)}
MIXERS |= {
    "gated_delta layer": GatedDelta(2.0, conv=3, gate="norm_first"),
    "state_space layer": StateSpace(conv=3, gate="gate_first", skip=True, groups=2),
    "mamba3 layer": Mamba3(conv=3, gate="norm_first", skip=True, groups=2, state=6),
    "log_linear layer": LogLinear(3, conv=3, gate="gate_first", skip=True, groups=2),
}
WAYS = [(name, way) for name, mixer in MIXERS.items() for way in mixer.implementations]
SCANNED = [(name, scanned) for name in MIXERS for scanned in (False, True)]
SEGMENTS = jnp.array([[0, 0, 0, 0, 0, 1, 2, 2, 2], [4, 4, 7, 7, 7, 7, 7, 7, 7]])
PACKED = {"query_segments": SEGMENTS, "key_segments": SEGMENTS}
DOCUMENTS = [(0, 0, 5), (0, 5, 6), (0, 6, LENGTH), (1, 0, 2), (1, 2, LENGTH)]  # sequence, first, end

pytestmark = [pytest.mark.usefixtures("x64", "short_chunks"), pytest.mark.xdist_group(__name__)]


@pytest.fixture
def short_chunks(monkeypatch):
    """Chunks in which segments and parts begin."""
    monkeypatch.setattr(state, "CHUNK", 4)
    monkeypatch.setattr(state, "NARROW_CHUNK", 4)


def drawn(mixer):
    """Weights, and queries, keys, values and inputs of two sequences."""
    draw, sizes = np.random.default_rng(0).standard_normal, Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH)
    wide = [*mixer.widths(HEADS, HEADS, WIDTH).values(), (HEADS, WIDTH), (HEADS * WIDTH,)]
    weights = {name: jnp.asarray(draw(declared.shape)) for name, declared in mixer.arrays(sizes).items()}
    return weights, tuple(jnp.asarray(draw((2, LENGTH, *shape))) for shape in wide)


def attend(mixer, weights, arrays, implementation="reference", **mask):
    *arrays, source = arrays
    mask = Mask(causal=True, **mask)
    return attention.attend(mixer, weights, *arrays, source=source, mask=mask, implementation=implementation)


def advance(mixer, weights, arrays, before=None, **mask):
    *arrays, source = arrays
    return attention.advance(mixer, weights, *arrays, before, source=source, mask=Mask(**mask))


def each_alone(mixer, weights, arrays, documents):
    """Each document by itself, at its place; zeros elsewhere."""
    out = jnp.zeros(arrays[2].shape)
    for sequence, first, end in documents:
        document = tuple(x[sequence : sequence + 1, first:end] for x in arrays)
        out = out.at[sequence, first:end].set(attend(mixer, weights, document)[0])
    return out


@pytest.mark.parametrize(("name", "way"), once(WAYS, [("state_space layer", "chunked"), ("kimi_delta", "chunked")]))
def test_documents_in_one_sequence_are_those_by_themselves(name, way):
    mixer = MIXERS[name]
    found = outcome(lambda w, x: attend(mixer, w, x, way, **PACKED), *drawn(mixer))
    expected = outcome(lambda w, x: each_alone(mixer, w, x, DOCUMENTS), *drawn(mixer))
    chex.assert_trees_all_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.more
def test_documents_may_be_those_of_all_sequences_with_padding_behind():
    mixer = MIXERS["state_space layer"]
    weights, arrays = drawn(mixer)
    segments = {"query_segments": SEGMENTS[1:], "key_segments": SEGMENTS[1:], "key_lengths": jnp.array([7])}
    expected = each_alone(mixer, weights, arrays, [(0, 0, 2), (0, 2, 7), (1, 0, 2), (1, 2, 7)])
    for way in mixer.implementations:
        found = attend(mixer, weights, arrays, way, **segments)
        chex.assert_trees_all_close(found[:, :7], expected[:, :7], rtol=0, atol=1e-10)


def in_parts(mixer, weights, arrays, ends, **mask):
    """The output of a sequence in parts that end before these tokens, and the state after them."""
    outs, before, first = [], None, 0
    for end in ends:
        part = tuple(x[:, first:end] for x in arrays)
        segments = {name: x[:, first:end] if name.startswith("query") else x for name, x in mask.items()}
        out, before = advance(mixer, weights, part, before, query_offset=first, **segments)
        outs, first = [*outs, out], end
    return jnp.concatenate(outs, 1), before


@pytest.mark.parametrize(("name", "scanned"), once(SCANNED, [("state_space layer", False), ("kimi_delta", True)]))
def test_a_sequence_in_parts_is_the_whole_with_its_last_state_and_all_gradients(monkeypatch, name, scanned):
    mixer = MIXERS[name]
    if scanned:
        monkeypatch.setattr(type(mixer), "implementations", ("reference",))
    whole = outcome(lambda w, x: advance(mixer, w, x), *drawn(mixer))
    parts = outcome(lambda w, x: in_parts(mixer, w, x, (5, 6, LENGTH)), *drawn(mixer))
    chex.assert_trees_all_close(parts, whole, rtol=0, atol=1e-9)
    chex.assert_trees_all_close(whole[0][0], attend(mixer, *drawn(mixer)), rtol=0, atol=1e-9)


CHUNKED = [name for name, mixer in MIXERS.items() if "chunked" in mixer.implementations]


@pytest.mark.parametrize("name", once(CHUNKED, ["delta_product"]))
def test_what_a_gpu_computes_for_all_chunks_at_once_is_what_a_loop_computes(monkeypatch, name):
    mixer = MIXERS[name]

    def read(weights, arrays):
        documents = attend(mixer, weights, arrays, "chunked", key_lengths=jnp.array([LENGTH, 8]), **PACKED)
        return documents, in_parts(mixer, weights, arrays, (5, LENGTH))

    looped = outcome(read, *drawn(mixer))
    monkeypatch.setattr(state, "platform", lambda: "gpu")
    chex.assert_trees_all_close(outcome(read, *drawn(mixer)), looped, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", once(MIXERS, ["state_space layer"]))
def test_a_state_has_a_gradient_of_its_own(name):
    """By central differences along one direction."""
    mixer = MIXERS[name]
    weights, arrays = drawn(mixer)
    _, before = advance(mixer, weights, arrays)
    way = jax.tree.map(lambda x: jnp.asarray(np.random.default_rng(1).standard_normal(x.shape)), before)
    read = jax.jit(
        lambda t: jnp.sum(
            jnp.sin(advance(mixer, weights, arrays, jax.tree.map(lambda x, d: x + t * d, before, way))[0])
        )
    )
    found, numeric = jax.grad(read)(0.0), (read(1e-5) - read(-1e-5)) / 2e-5
    assert abs(found) > 1e-3
    assert abs(found - numeric) < 1e-6 * max(1, abs(found))


@pytest.mark.parametrize(("name", "scanned"), once(SCANNED, [("state_space layer", False), ("kimi_delta", True)]))
def test_parts_honour_segments_and_lengths(monkeypatch, name, scanned):
    """A segment may begin with a part, and the last tokens before a part may be of two segments."""
    mixer = MIXERS[name]
    if scanned:
        monkeypatch.setattr(type(mixer), "implementations", ("reference",))
    weights, arrays = drawn(mixer)
    mask = PACKED | {"key_lengths": jnp.array([LENGTH, 8])}
    expected = attend(mixer, weights, arrays, **mask)
    dirty = tuple(x.at[1, 8:].set(jnp.nan) for x in arrays[1:])
    found, _ = in_parts(mixer, weights, (arrays[0], *dirty), (1, 4, 5, 6, LENGTH), **mask)
    chex.assert_trees_all_close(found[0], expected[0], rtol=0, atol=1e-10)
    chex.assert_trees_all_close(found[1, :8], expected[1, :8], rtol=0, atol=1e-10)


@pytest.mark.more
def test_a_layers_cache_honours_segments():
    layer = MultiHeadAttention("gated_delta", HEADS, LENGTH, dtype=jnp.float64)
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, LENGTH, HEADS * WIDTH)))
    params = layer.init(jax.random.key(0), x)
    expected = layer.apply(params, x, mask=Mask(causal=True, **PACKED))
    cache, outs = layer.init_cache(2, LENGTH, x.shape[-1]), []
    for first, end in ((0, 4), (4, 7), (7, 8), (8, 9)):
        mask = Mask(query_segments=SEGMENTS[:, first:end], key_segments=SEGMENTS)
        out, cache = layer.apply(params, x[:, first:end], mask=mask, cache=cache)
        outs.append(out)
    chex.assert_trees_all_close(jnp.concatenate(outs, 1), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: attention.advance("cosine", {"log_scale": x[0]}, x, x, x), "keeps no state: its queries need every"),
        (lambda x: attention.advance("linear", {}, x, x[:, :3], x[:, :3]), "as many keys as queries, not 3 and 9"),
        (lambda x: attention.advance("linear", {}, x, x, x, x), r"The state of Linear attention has the shape"),
        (lambda x: attention.advance("linear", {}, x, x, x, mask=Mask(window=2)), "cannot honour a mask of kind"),
        *(
            (
                lambda x, options=options: attention.attend("linear", {}, x, x, x, mask=Mask(**PACKED, **options)),
                "Linear attention has segments in causal self-attention alone; say causal=True",
            )
            for options in ({}, {"causal": True, "query_offset": 1})
        ),
    ],
)
def test_mistakes_are_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call(jnp.zeros((2, LENGTH, HEADS, WIDTH)))
