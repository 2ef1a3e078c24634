"""The language model: causality, caches, tied outputs, rotary positions."""

import dataclasses
import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from attention.scores.rotary import Rotary
from models.gpt import GPT, GPTConfig
from models.mechanisms import MECHANISMS
from tests.models.small import apply, random_params, small
from tests.sizes import once

CONFIG = small(GPTConfig)
TOKENS = jax.random.randint(jax.random.key(0), (2, 9), 0, 11)


def build(**changes):
    model = GPT(dataclasses.replace(CONFIG, **changes), vocabulary=11, length=12)
    return model, random_params(model, TOKENS)


@pytest.mark.parametrize(
    ("positions", "norm"),
    once(itertools.product(["learned", "sinusoidal", "rotary", "none"], ["pre", "post"]), [("rotary", "pre")]),
)
def test_logits_depend_on_what_is_before_alone(positions, norm):
    model, params = build(positions=positions, norm=norm, scale_embeddings=positions == "sinusoidal")
    logits = apply(model, params, TOKENS)
    changed = apply(model, params, TOKENS.at[:, 5].set((TOKENS[:, 5] + 1) % 11))
    chex.assert_trees_all_close(logits[:, :5], changed[:, :5], atol=1e-5)
    assert np.all(np.abs(logits - changed)[:, 5:].max(axis=(0, 2)) > 1e-4)


@pytest.mark.parametrize(
    ("attention", "positions"),
    once(
        itertools.product(
            ["dot_product", "super", "neural|delta", "gaussian(normalise=False)"], ["learned", "sinusoidal", "rotary"]
        ),
        [("dot_product", "rotary"), ("gaussian(normalise=False)", "sinusoidal")],
    ),
)
def test_prefill_and_single_tokens_equal_the_whole(attention, positions):
    if "gaussian" in attention and positions == "rotary":
        with pytest.raises(UsageError, match="The values of gaussian are its keys"):
            build(attention=attention, positions=positions)
        return
    model, params = build(attention=attention, positions=positions)
    whole = apply(model, params, TOKENS)
    step = jax.jit(lambda tokens, caches: model.apply(params, tokens, False, caches))
    caches, parts = model.init_caches(2, 12), []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 9)):
        logits, caches = step(TOKENS[:, start:stop], caches)
        parts.append(logits)
    chex.assert_trees_all_close(jnp.concatenate(parts, axis=1), whole, atol=2e-5, rtol=1e-4)


def test_rotation_is_multiplication_of_complex_numbers():
    x = jax.random.normal(jax.random.key(0), (5, 2, 6))
    rates = 10_000.0 ** (-np.arange(3) / 3)
    turned = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * (np.arange(5)[:, None, None] + 2) * rates)
    np.testing.assert_allclose(Rotary().turn(x, 2), np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


def test_a_row_without_queries_cannot_turn():
    for name, row in MECHANISMS.items():
        if "none" in (row.query, row.key):
            with pytest.raises(UsageError, match=rf"{name} has no queries and keys to rotate"):
                build(attention=name, positions="rotary")


def test_a_tied_output_has_no_weights_of_its_own():
    tied, free = (build(tied_output=tied)[1]["params"] for tied in (True, False))
    assert set(free) - set(tied) == {"head"}


def test_scaled_embeddings_are_multiplied_by_the_root_of_the_width():
    _, params = build(positions="none")
    scaled, _ = build(positions="none", scale_embeddings=True, tied_output=False)
    plain, _ = build(positions="none", tied_output=False)
    params["params"]["head"] = {"kernel": jnp.ones((16, 11)) * jnp.arange(11.0)[None], "bias": jnp.zeros(11)}
    bigger = jax.tree.map(lambda x: x, params)
    bigger["params"]["embed"] = {"embedding": 4.0 * params["params"]["embed"]["embedding"]}
    chex.assert_trees_all_close(apply(scaled, params, TOKENS), apply(plain, bigger, TOKENS), rtol=1e-5)


def test_caches_longer_than_learned_positions_are_refused():
    model, _ = build()
    with pytest.raises(UsageError, match="13 tokens were asked for, but positions were learned for 12"):
        model.init_caches(1, 13)
