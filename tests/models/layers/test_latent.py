"""Multi-head latent attention: its equations number by number, and a cache that is read as it is."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import Mask, UsageError
from attention.scores.rotary import Rotary
from models.layers.multi_head import MultiHeadAttention
from tests.jaxprs import equations
from tests.models.small import apply, in_parts, random_like
from tests.sizes import once

LENGTH, WIDTH, HEADS, HEAD = 7, 24, 3, 8
LATENT, QUERY_LATENT, PART = 10, 6, 4
SPEC = f"dot_product(latent={LATENT}, query_latent={QUERY_LATENT}, rotary={PART}, latent_norm=True)"
CAUSAL = Mask(causal=True)


def layer(spec=SPEC, **options):
    return MultiHeadAttention(spec, HEADS, **{"bias": False, "rotary": Rotary(base=50.0)} | options)


def made(module, seed=0):
    x = jax.random.normal(jax.random.key(seed), (2, LENGTH, WIDTH))
    return random_like(jax.eval_shape(functools.partial(module.init, mask=CAUSAL), jax.random.key(1), x))["params"], x


def turned(x, position):
    """Pairs (x_i, x_{i + R/2}) as complex numbers, times exp(√−1 · position · rate)."""
    low, high = np.split(x, 2)
    product = (low + 1j * high) * np.exp(1j * position * 50.0 ** (-np.arange(0, PART, 2) / PART))
    return np.concatenate([product.real, product.imag])


def test_equations_of_deepseek_v2():
    """Equations 9 to 18 of arXiv:2405.04434, token by token and head by head, with the norms of its latents."""
    module = layer()
    params, x = made(module)
    out = apply(module, {"params": params}, x, mask=CAUSAL)
    p, x = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (params, x))
    norm = lambda c, name: c / np.sqrt(np.mean(c**2) + 1e-6) * p[name]["scale"]  # noqa: E731
    expected = np.zeros_like(x)
    for batch in range(2):
        latents = [norm(h @ p["latent"]["kernel"], "latent_norm") for h in x[batch]]
        shared = [turned(h @ p["rotary_key"]["kernel"][:, 0], j) for j, h in enumerate(x[batch])]
        for i, h in enumerate(x[batch]):
            of_query = norm(h @ p["query_latent"]["kernel"], "query_latent_norm")
            for head in range(HEADS):
                query = of_query @ p["query"]["kernel"][:, head]
                part, content = turned(query[:PART], i), query[PART:]
                keys = [latent @ p["key"]["kernel"][:, head] for latent in latents[: i + 1]]
                scores = [content @ key + part @ turn for key, turn in zip(keys, shared, strict=False)]
                weights = np.exp(np.array(scores) / np.sqrt(HEAD + PART))
                values = [latent @ p["value"]["kernel"][:, head] for latent in latents[: i + 1]]
                expected[batch, i] += weights @ np.array(values) / weights.sum() @ p["out"]["kernel"][head]
    np.testing.assert_allclose(out, expected, atol=1e-5)


ABSORBED = {
    "published": (SPEC, {}),
    "grouped": (f"dot_product(latent={LATENT}, rotary={PART}, kv_heads=1, scale=0.4)", {}),
    "without positions": (f"dot_product(latent={LATENT})", {"rotary": None}),
    "scalable": (f"scalable_softmax(latent={LATENT}, rotary={PART})", {}),
}
PLAIN = {
    "biases": (SPEC, {"bias": True}),
    "turned heads": (f"dot_product(latent={LATENT})", {}),
    "a pair's MLP": (f"neural(latent={LATENT}, rotary={PART})", {}),
    "an MLP of keys": (f"dot_product(latent={LATENT}, key='mlp', rotary={PART})", {}),
}


@pytest.mark.parametrize("kind", once([*ABSORBED, *PLAIN], ["turned heads"]))
def test_tokens_read_latents_as_they_are_where_scores_are_products(kind):
    """Moved projections give the same; no array of the step has numbers for each slot, head and column."""
    room = LENGTH + 4  # no other size
    module = layer((ABSORBED | PLAIN)[kind][0], **(ABSORBED | PLAIN)[kind][1])
    params, x = made(module)
    whole = apply(module, {"params": params}, x, mask=CAUSAL)
    step = jax.jit(lambda x, cache: module.apply({"params": params}, x, cache=cache))
    out, _ = in_parts(step, x, module.init_cache(2, room, WIDTH), range(3, LENGTH + 1))
    chex.assert_trees_all_close(out, whole, atol=2e-5)
    program = jax.make_jaxpr(step)(x[:, :1], module.init_cache(2, room, WIDTH))
    arrays = (out.aval for equation in equations(program) for out in equation.outvars)
    largest = max(array.size for array in arrays if room in getattr(array, "shape", ()))  # with an axis of slots
    assert (largest < 2 * room * HEADS * HEAD) == (kind in ABSORBED)


def test_a_turned_part_is_for_self_attention():
    x = jnp.ones((1, LENGTH, WIDTH))
    with pytest.raises(UsageError, match="dot_product with these options is for self-attention only"):
        layer(rotary=None).init(jax.random.key(0), x, x)
