"""States of complex numbers stay complex in every form; other states are refused."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.nn import initializers

import attention
from attention import Mask, UsageError
from attention.check.subject import HEADS, LENGTH, WIDTH, inputs
from attention.parameters import Parameter, Sizes
from attention.recurrences.recurrence import CHUNKED, Recurrence


@dataclasses.dataclass(frozen=True)
class Turning(Recurrence):
    """W ← λ W + v kᵀ and Re(W q), where |λ| < 1 turns W too, as in a linear recurrent unit (Orvieto et al. 2023)."""

    def parameters(self, sizes):
        """Declares −log |λ| and the angle of λ, of each head."""
        return {name: Parameter((sizes.heads,), initializers.ones, ("heads",)) for name in ("fade", "angle")}

    def begin(self, head, value):
        return jnp.zeros((value, head), complex)

    def write(self, params, state, key, value, gates):
        return jnp.exp(jax.lax.complex(-params["fade"], params["angle"])) * state + jnp.outer(value, key)

    def read(self, params, state, query):
        return self.finish(state @ query)

    def finish(self, out):
        return jnp.real(out)


@dataclasses.dataclass(frozen=True)
class TurningInChunks(Turning):
    traits = CHUNKED

    def writes(self, params, query, key, value):
        decay = jax.lax.complex(-params["fade"], params["angle"])[:, None]
        decay = jnp.broadcast_to(decay, (*value.shape[:-2], HEADS, 1))
        return query, key[0], value, None, decay


PARAMS = {"fade": np.array([0.01, 0.1, 0.5, 1.0]), "angle": np.array([0.1, 0.5, 2.0, 3.1])}


def by_hand(query, key, value):
    out = np.zeros(value.shape)
    for b, n in np.ndindex(len(query), HEADS):
        state = np.zeros((WIDTH, WIDTH), np.complex128)
        for t in range(query.shape[1]):
            state = np.exp(-PARAMS["fade"][n] + 1j * PARAMS["angle"][n]) * state
            state += np.outer(value[b, t, n], key[b, t, n])
            out[b, t, n] = (state @ query[b, t, n]).real
    return out


def test_a_complex_state_turns(x64):
    arrays, tolerance = inputs(70, 70, dtype=jnp.float32), 1e-4  # more than a chunk
    params = {name: jnp.asarray(x, jnp.float32) for name, x in PARAMS.items()}
    expected = by_hand(*(np.asarray(x) for x in arrays))
    for mixer, way in ((Turning(), "reference"), (TurningInChunks(), "chunked"), (TurningInChunks(), "xla")):
        found = attention.attend(mixer, params, *arrays, mask=Mask(causal=True), implementation=way)
        assert found.dtype == jnp.float32
        chex.assert_trees_all_close(found, expected, rtol=0, atol=tolerance)
        outs, state = [], None
        for first, end in ((0, 30), (30, 31), (31, 70)):
            out, state = attention.advance(mixer, params, *(x[:, first:end] for x in arrays), state)
            outs.append(out)
        assert state.dtype == jnp.complex64
        chex.assert_trees_all_close(np.concatenate(outs, 1), expected, rtol=0, atol=tolerance)
    start = Turning().start(Sizes(HEADS * WIDTH, HEADS, WIDTH, LENGTH), (2,), jnp.bfloat16)
    assert (start.shape, start.dtype) == ((2, HEADS, WIDTH, WIDTH), jnp.complex64)


def starting(kind):
    return lambda self, head, value: jnp.zeros((value, head), kind)


@pytest.mark.parametrize(
    ("method", "instead", "message"),
    [
        ("begin", starting(int), "A state holds real or complex numbers, but Turning begins with int"),
        ("begin", starting(float), "Turning writes complex numbers to a real state; let `begin` make complex zeros"),
        (
            "finish",
            lambda self, out: out,
            "Turning reads complex numbers; let `read` and `finish` give their real part",
        ),
    ],
)
def test_other_states_are_refused_in_a_sentence(monkeypatch, method, instead, message):
    monkeypatch.setattr(Turning, method, instead)
    mixer = Turning()
    params = {name: jnp.asarray(x, jnp.float32) for name, x in PARAMS.items()}
    with pytest.raises(UsageError, match=message):
        attention.attend(mixer, params, *inputs(dtype=jnp.float32), mask=Mask(causal=True))
