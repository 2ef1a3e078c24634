"""Chunks of tokens give what the scan gives, where states fade by very different amounts."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask
from attention.options import Options
from attention.parameters import Sizes
from attention.recurrences.gated import GatedLinear
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from attention.recurrences.product import DeltaProduct
from attention.recurrences.rwkv import RWKV7
from attention.recurrences.selective import GatedDelta2, KimiDelta
from tests.sizes import once

LENGTH, HEADS, WIDTH = 37, 2, 4  # two chunks and a part of the third


def arrays(kind, dtype=jnp.float64, length=LENGTH):
    """Query, key with gates, and value; some columns keep everything and some lose everything at once."""
    query, key, value, amounts, chances = jax.random.normal(jax.random.key(0), (5, 1, length, HEADS, WIDTH), dtype)
    decay = -jnp.exp(4 * amounts) * (chances > 0)
    strength = jax.nn.sigmoid(amounts[..., 0])
    return query, (key, (decay, strength) if kind is KimiDelta else decay), value


@pytest.mark.parametrize("causal", once([True, False], [False]))
@pytest.mark.parametrize("kind", once([GatedLinear, KimiDelta], [KimiDelta]))
@pytest.mark.parametrize("implementation", once(["chunked", "auto"], ["auto"]))
def test_columns_that_fade_by_themselves_are_those_of_the_scan(x64, kind, causal, implementation):
    """`auto` scans a causal pass without a gradient, and takes chunks for one with a gradient."""
    given = arrays(kind)

    def outcome(name):
        attend = lambda *given: kind().attend({}, *given, Options(Mask(causal=causal), implementation=name))  # noqa: E731
        loss = lambda *given: jnp.sum(jnp.sin(attend(*given)))  # noqa: E731
        return jax.jit(attend)(*given), jax.jit(jax.grad(loss, (0, 1, 2)))(*given)

    chex.assert_trees_all_close(outcome(implementation), outcome("reference"), rtol=0, atol=1e-10)


SATURATING = [GatedLinear(), GatedDelta2(), DeltaProduct(3), RWKV7(), Mamba3(), LogLinear()]


@pytest.mark.parametrize("mixer", once(SATURATING, SATURATING[:1]))
def test_gates_that_saturate_stay_finite(mixer, x64):
    """Both what is computed and its gradients."""
    draw, model = np.random.default_rng(0).standard_normal, HEADS * WIDTH
    declared = mixer.parameters(Sizes(model, HEADS, WIDTH, LENGTH))
    weights = {name: jnp.asarray(100 * draw(parameter.shape)) for name, parameter in declared.items()}
    x = jnp.asarray(draw((1, LENGTH, HEADS, WIDTH)))
    options = {"source": x.reshape(1, LENGTH, model), "mask": Mask(causal=True), "implementation": "chunked"}
    attend = lambda weights: attention.attend(mixer, weights, x, x, x, **options).sum()  # noqa: E731
    chex.assert_tree_all_finite(jax.jit(jax.value_and_grad(attend))(weights))


@pytest.mark.parametrize("length", [LENGTH, 16])
def test_the_forward_pass_alone_is_a_scan_over_tokens_and_training_is_in_chunks(length):
    """A scan over 16 tokens and back took 7 to 32 times as long as their one chunk, on a CPU."""
    given = arrays(GatedLinear, jnp.float32, length)
    attend = lambda *given: GatedLinear().attend({}, *given, Options(Mask(causal=True)))  # noqa: E731
    scans = []
    for function in (attend, jax.grad(lambda *given: jnp.sum(attend(*given)))):
        program = str(jax.make_jaxpr(jax.jit(function))(*given))
        scans.append(f"length={length}" in program)
    assert scans == [True, False]
