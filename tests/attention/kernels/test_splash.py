"""Dot products by JAX's kernel for TPUs: against the definition, chosen by `auto`, and refused in a sentence."""

import types

import chex
import jax
import jax.numpy as jnp
import pytest

from attention import Mask, UnsupportedError, dot_product_attention, mesh
from attention.kernels import choose, fused, splash
from tests.attention import cases
from tests.sizes import more

LENGTHS = jnp.array([150, 0])
SEGMENTS = jnp.repeat(jnp.array([[0, 1, 2], [5, 5, 7]]), 60, axis=1)


def arrays(queries=180, keys=180, heads=2, kv_heads=1):
    random = jax.random.split(jax.random.key(0), 3)
    shapes = (2, queries, heads, 8), (2, keys, kv_heads, 8), (2, keys, kv_heads, 4)
    return [jax.random.normal(k, shape) for k, shape in zip(random, shapes, strict=True)]


def outcome(implementation, mask, *given):
    return cases.outcome(lambda *x: dot_product_attention(*x, mask=mask, implementation=implementation), *given)


@pytest.mark.parametrize(
    ("mask", "keys"),
    [
        (Mask(causal=True, key_lengths=LENGTHS), 180),
        more(Mask(), 100),
        more(Mask(key_lengths=LENGTHS), 250),
        more(Mask(causal=True), 180),
        more(Mask(), 1100),  # nine tiles of keys: two backward kernels
        more(Mask(causal=True, window=40), 180),
        more(Mask(window=40), 180),
        more(Mask(query_segments=SEGMENTS, key_segments=SEGMENTS[::-1]), 180),
        more(Mask(causal=True, query_segments=SEGMENTS, key_segments=SEGMENTS, key_lengths=LENGTHS), 180),
    ],
)
def test_equals_the_definition_in_output_and_gradients(mask, keys):
    """Two query heads on one of keys; tiles of 128 are padded, and a whole sequence is padding, which is no number."""
    query, key, value = arrays(keys=keys)
    if mask.key_lengths is not None:
        padding = jnp.arange(keys)[None, :, None, None] >= mask.key_lengths[:, None, None, None]
        key, value = (jnp.where(padding, jnp.nan, x) for x in (key, value))
    given = query, key, value
    chex.assert_trees_all_close(outcome("pallas(128, 128)", mask, *given), outcome("xla", mask, *given), atol=2e-5)


@pytest.mark.more
def test_half_precision_stays_near_single():
    given = [x.astype(jnp.bfloat16).astype(jnp.float32) for x in arrays()]
    exact, half = (
        outcome("pallas", Mask(causal=True), *(x.astype(kind) for x in given)) for kind in (jnp.float32, jnp.bfloat16)
    )
    chex.assert_trees_all_equal_dtypes(half[0], jnp.zeros((), jnp.bfloat16))
    chex.assert_trees_all_close(jax.tree.map(lambda x: x.astype(jnp.float32), half), exact, atol=0.1)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("adds no bias", {"bias": jnp.zeros((1, 1, 180, 180))}),
        ("takes no dense mask", {"mask": Mask(dense=jnp.ones((1, 1, 180, 180), bool))}),
        ("drops no attention weights", {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}),
        ("returns no weights", {"return_weights": True}),
        ("no choice of precision", {"precision": "highest"}),
        ("as many queries as keys", {"mask": Mask(causal=True, query_offset=3)}),
        ("it has no queries", {"value": jnp.zeros((2, 180, 1, 0))}),
        ("times 400 would round", {"scale": 400.0, "query": jnp.zeros((2, 180, 2, 8), jnp.bfloat16)}),
        (r"multiples of 128 queries and keys, not \(64, 128\)", {"implementation": "pallas(64, 128)"}),
    ],
)
def test_what_it_cannot_do_is_a_sentence(monkeypatch, reason, options):
    monkeypatch.setattr(fused, "why_not", lambda call: "it is not asked for")
    given = dict(zip(("query", "key", "value"), arrays(), strict=True)) | {"implementation": "pallas"} | options
    with pytest.raises(UnsupportedError, match=rf"'pallas' cannot do this call: .*{reason}.*; use 'chunked' or 'auto'"):
        dot_product_attention(**given)


@pytest.mark.parametrize(
    ("mask", "tokens", "kernels"),
    [
        (Mask(causal=True, key_lengths=jnp.array([300, 7])), 300, 2),
        more(Mask(), 256, 2),
        more(Mask(causal=True, window=40), 8192, 3),
    ],
)
def test_every_kernel_lowers_for_a_tpu(mask, tokens, kernels):
    """Two kernels, or three beyond eight tiles of keys; values and scores of other dtypes, as `cosine` has them."""
    *others, value = (jax.ShapeDtypeStruct((2, tokens, heads, 64), jnp.float32) for heads in (4, 2, 2))
    value = jax.ShapeDtypeStruct(value.shape, jnp.bfloat16)

    def loss(*x):
        return dot_product_attention(*x, mask=mask).astype(jnp.float32).sum()

    with mesh.compiled_for(types.SimpleNamespace(platform="tpu")):
        program = jax.export.export(jax.jit(jax.grad(loss, (0, 1, 2))), platforms=("tpu",))(*others, value)
    assert program.mlir_module().count("stablehlo.custom_call @tpu_custom_call(") == kernels


@pytest.mark.parametrize(
    ("tokens", "options", "taken"),
    [(splash.FEWEST, {}, True), (splash.FEWEST - 1, {}, False), (splash.FEWEST, {"return_weights": True}, False)],
)
def test_auto_takes_it_on_a_tpu_for_long_sequences(monkeypatch, tokens, options, taken):
    asked = []
    monkeypatch.setattr(splash, "attend", lambda call: asked.append(call) or choose.xla.attend(call))
    attend = lambda *given: dot_product_attention(*given, **options)  # noqa: E731
    with mesh.compiled_for(types.SimpleNamespace(platform="tpu")):
        jax.eval_shape(attend, *arrays(tokens, tokens))
    jax.eval_shape(attend, *arrays(tokens, tokens))  # on a CPU it is interpreted, if it is named
    assert len(asked) == taken
