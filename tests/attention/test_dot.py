"""What is particular to dot products; the contract that all functions keep is `test_contract.py`."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask, UnsupportedError, UsageError, dot_product_attention, mesh
from attention.kernels import choose
from attention.mesh import REPLICAS
from attention.scores.dot import DotProduct
from tests.sizes import more, once


def inputs(queries=7, keys=7, heads=4, key_heads=4, width=8, batch=(2,), dtype=jnp.float64, seed=0):
    keys_ = jax.random.split(jax.random.key(seed), 3)
    shapes = [(*batch, queries, heads, width), (*batch, keys, key_heads, width), (*batch, keys, key_heads, width)]
    return tuple(jax.random.normal(k, s, dtype) for k, s in zip(keys_, shapes, strict=True))


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_equals_the_equation_in_numpy(x64, implementation):
    q, k, v = inputs()
    out, weights = dot_product_attention(q, k, v, scale=0.7, return_weights=True, implementation=implementation)
    for b in range(2):
        for n in range(4):
            scores = np.exp(0.7 * np.asarray(q)[b, :, n] @ np.asarray(k)[b, :, n].T)
            expected = scores / scores.sum(-1, keepdims=True)
            np.testing.assert_allclose(weights[b, n], expected, atol=1e-12)
            np.testing.assert_allclose(out[b, :, n], expected @ np.asarray(v)[b, :, n], atol=1e-12)


@pytest.mark.parametrize("implementation", once(["reference", "xla", "chunked"], ["xla"]))
def test_equals_jax_nn(implementation):
    q, k, v = inputs(key_heads=2, dtype=jnp.float32)
    mask = Mask(causal=True)
    expected = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    chex.assert_trees_all_close(
        dot_product_attention(q, k, v, mask=mask, implementation=implementation), expected, atol=2e-6
    )


def test_an_implementation_names_everything_that_it_cannot_do():
    arrays, dropped = inputs(width=6, dtype=jnp.float32), {"dropout_rate": 0.1, "dropout_key": jax.random.key(0)}
    with pytest.raises(UnsupportedError, match="'chunked' cannot do this call: it returns no weights; use 'xla'"):
        dot_product_attention(*arrays, implementation="chunked", return_weights=True)
    with pytest.raises(UnsupportedError, match=r"NVIDIA GPU.*bfloat16 or float16.*multiple of 8.*drops no"):
        dot_product_attention(*arrays, implementation="cudnn", **dropped)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """As if this were an Ampere GPU: `jax.nn` computes with XLA in cuDNN's place, of what is then asked for."""
    plain, asked = jax.nn.dot_product_attention, []

    def on_xla(*arrays, implementation, **options):
        asked.append({"bias": arrays[3], "implementation": implementation} | options)
        return plain(*arrays, **options)

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(mesh, "compute_capability", lambda: (8, 0))
    monkeypatch.setattr(jax.nn, "dot_product_attention", on_xla)
    return asked


@pytest.mark.parametrize(
    ("mask", "bias", "lengths", "whole"),
    [
        (Mask(causal=True, key_lengths=jnp.array([3, 0])), None, (8, 8), False),
        more(Mask(window=2, key_lengths=jnp.array([9, 0])), None, (8, 8), True),
        (Mask(key_lengths=jnp.array([3, 0])), (1, 4, 8, 8), (8, 8), True),
    ],
)
def test_cudnn_is_given_the_call_and_its_empty_rows_become_zeros(on_a_gpu, mask, bias, lengths, whole):
    """No array of all pairs is made for what cuDNN has itself."""
    q, k, v = inputs(*lengths, dtype=jnp.bfloat16)
    bias = None if bias is None else jax.random.normal(jax.random.key(5), bias, jnp.bfloat16)
    expected = dot_product_attention(q, k, v, mask=mask, bias=bias, scale=0.5, implementation="reference")
    for implementation in ("cudnn", "auto"):
        out = dot_product_attention(q, k, v, mask=mask, bias=bias, scale=0.5, implementation=implementation)
        chex.assert_trees_all_close(out.astype(jnp.float32), expected.astype(jnp.float32), atol=0.03)
        assert mask is None or mask.key_lengths is None or np.all(np.asarray(out[1], np.float32) == 0)
    assert len(on_a_gpu) == 2
    for asked in on_a_gpu:
        assert asked["implementation"] == "cudnn"
        assert ("mask" in asked or asked["bias"] is not None) == whole
        for name in ("bias", "mask"):  # cuDNN refuses what broadcasts over queries or keys
            assert asked.get(name) is None or asked[name].shape[-2:] == lengths


def test_auto_does_not_take_cudnn_for_what_it_refuses(on_a_gpu, monkeypatch):
    q, k, v = inputs(8, 8, dtype=jnp.bfloat16)
    refused = {
        "queries of bfloat16 need keys and values of it": [(q, k.astype(jnp.float32), v), (q, k, v.astype("float32"))],
        "it needs even numbers of queries and keys, not 8 and 7": [(q, k[:, :7], v[:, :7])],
    }
    for message, calls in refused.items():
        for arrays in calls:
            with pytest.raises(UnsupportedError, match=message):
                dot_product_attention(*arrays, implementation="cudnn")
            dot_product_attention(*arrays)
    attention.attend(DotProduct(normaliser="sink"), {}, q, k, v)
    monkeypatch.setattr(mesh, "compute_capability", lambda: (7, 5))
    with pytest.raises(UnsupportedError, match="an NVIDIA GPU of the Ampere generation or a later one"):
        dot_product_attention(q, k, v, implementation="cudnn")
    dot_product_attention(q, k, v)
    assert not on_a_gpu


def test_cudnn_never_sees_an_open_half_of_a_block_of_keys(on_a_gpu):
    """Its gradients would be NaN beside low scores."""
    q, k, v = inputs(64, 64, dtype=jnp.bfloat16)
    for mask in (Mask(causal=True), Mask(key_lengths=jnp.array([3, 5]))):
        dot_product_attention(q, k, v, mask=mask, implementation="cudnn")
    dot_product_attention(q[:, 2:], k[:, 2:], v[:, 2:], implementation="cudnn")
    for options in ({}, {"mask": Mask(window=5)}, {"bias": jnp.zeros((1, 1, 1, 64), jnp.bfloat16)}):
        with pytest.raises(UnsupportedError, match="64 keys leave half a block of 128"):
            dot_product_attention(q, k, v, implementation="cudnn", **options)
        dot_product_attention(q, k, v, **options)
    assert len(on_a_gpu) == 3


def test_auto_does_not_take_cudnn_for_replicas(on_a_gpu):
    """JAX's rule of `vmap` would fail for most calls."""
    q, k, v = inputs(8, 8, dtype=jnp.bfloat16)

    def attend(q, implementation="auto"):
        return dot_product_attention(q, k, v, implementation=implementation)

    both = jax.vmap(jax.checkpoint(jax.jit(attend)), axis_name=REPLICAS)(jnp.stack([q, 2 * q]))
    assert not on_a_gpu
    chex.assert_trees_all_close(both[1].astype(jnp.float32), attend(2 * q).astype(jnp.float32), atol=0.03)
    assert len(on_a_gpu) == 1
    with pytest.raises(UnsupportedError, match="JAX cannot give it replicas"):
        jax.vmap(lambda q: attend(q, "cudnn"), axis_name=REPLICAS)(q[None])


def test_auto_lets_xla_make_all_scores_on_a_tpu_while_they_are_few(monkeypatch):
    q, k, v = inputs(dtype=jnp.float32)
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    scores = 2 * 4 * 7 * 7 * 4
    for most, chunks in ((scores, False), (scores - 1, True)):
        monkeypatch.setattr(choose, "MOST", most)
        assert ("custom_vjp" in str(jax.make_jaxpr(lambda q: dot_product_attention(q, k, v))(q))) == chunks


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((2, 7, 4, 8), (2, 7, 3, 8), (2, 7, 3, 8), "must divide the number of query heads"),
        ((2, 7, 4, 8), (2, 7, 4, 4), (2, 7, 4, 8), "equally wide"),
        ((2, 7, 4, 8), (1, 7, 4, 8), (1, 7, 4, 8), "same batch axes"),
        ((2, 7, 4, 8), (2, 5, 4, 8), (2, 7, 4, 8), "same length and heads"),
        ((7, 8), (7, 8), (7, 8), "length, heads, width"),
    ],
)
def test_mistakes_in_shapes_are_one_sentence(query, key, value, message):
    with pytest.raises(UsageError, match=message) as raised:
        dot_product_attention(jnp.ones(query), jnp.ones(key), jnp.ones(value))
    assert str(query) in str(raised.value)
