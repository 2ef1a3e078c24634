"""What Mamba-3 and log-linear attention are beside published code, in special cases, and behind padding."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from attention import Mask
from attention.parameters import Sizes
from attention.recurrences import state
from attention.recurrences.log_linear import LogLinear
from attention.recurrences.mamba import Mamba3
from tests.sizes import more

BATCH, LENGTH, HEADS, GROUPS, STATE, WIDTH, MODEL = 2, 37, 4, 2, 12, 6, 10

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.xdist_group(__name__)]


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(state, "CHUNK", 8)


def drawn(mixer):
    """Weights, and queries, keys, values and inputs."""
    draw = np.random.default_rng(0).standard_normal
    weights = {n: draw(p.shape) for n, p in mixer.parameters(Sizes(MODEL, HEADS, WIDTH, LENGTH)).items()}
    shapes = (GROUPS, STATE), (GROUPS, STATE), (HEADS, WIDTH), (MODEL,)
    return weights, [draw((BATCH, LENGTH, *shape)) for shape in shapes]


def attend(mixer, weights, arrays, implementation):
    *arrays, source = map(jnp.asarray, arrays)
    weights, mask = {n: jnp.asarray(x) for n, x in weights.items()}, Mask(causal=True)
    return attention.attend(mixer, weights, *arrays, source=source, mask=mask, implementation=implementation)


def softplus(x):
    return np.log1p(np.exp(x))


def turned(x, angles):
    """Turns the first pairs of columns, as `_rotary` of the published test."""
    wide = 2 * angles.shape[-1]
    pairs = (x[..., 0:wide:2] + 1j * x[..., 1:wide:2]) * np.exp(1j * angles)
    return np.concatenate([np.stack([pairs.real, pairs.imag], -1).reshape(*x.shape[:-1], wide), x[..., wide:]], -1)


def mamba3_by_hand(w, query, key, value, source):
    """`mamba3_siso_fwd_ref` of state-spaces/mamba, in tests/ops/triton/test_mamba3_siso.py, behind what its layer does.

    All pairs at once: keys are scaled by what is written at their own step and at the next, and what the next step
    writes is taken from the diagonal.
    """
    norm = lambda x, part: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w[f"{part}_scale"]  # noqa: E731
    query, key = (
        np.repeat(norm(x, part), HEADS // GROUPS, 2) + w[f"{part}_bias"] for x, part in ((query, "query"), (key, "key"))
    )
    step = softplus(source @ w["step_kernel"] + w["step_bias"])
    fade = -np.maximum(softplus(source @ w["forget_kernel"]), 1e-4) * step
    share = 1 / (1 + np.exp(-source @ w["before_kernel"]))
    again = np.pad((step * (1 - share))[:, 1:], [(0, 0), (0, 1), (0, 0)])
    own = np.sum(query * key, -1) * again
    angles = np.cumsum(np.tanh(source @ w["turn_kernel"])[:, :, None] * np.pi * step[..., None], 1)
    query, key = turned(query, angles), turned(key, angles) * (step * share + again)[..., None]
    sums = np.cumsum(fade, 1).transpose(0, 2, 1)
    faded = np.exp(np.tril(sums[..., :, None] - sums[..., None, :]))
    pairs = np.tril(np.einsum("bthd,bshd->bhts", query, key)) * faded
    return np.einsum("bhts,bshd->bthd", pairs, value) - value * own[..., None]


def log_linear_by_hand(w, query, key, value, source):
    """`naive_log_linear_attn` of flash-linear-attention, with its masks of levels, behind what its layer does."""
    step = softplus(source @ w["step_kernel"] + w["step_bias"])
    scales = softplus(w["level_scale"] * np.einsum("btd,dhl->bthl", source, w["level_kernel"])).transpose(0, 2, 1, 3)
    i, j = np.indices((LENGTH, LENGTH))
    masks = [i == j]
    for level in range(1, LENGTH.bit_length() + 1):
        half = 2 ** (level - 1)
        first = i - i % half
        masks.append((i % 2**level >= half) & (j + half >= first) & (j < first))
    last = scales.shape[-1] - 1
    shares = sum(mask * scales[..., min(level, last), None] for level, mask in enumerate(masks))
    sums = np.cumsum(-step * np.exp(w["forget_rate"]), 1).transpose(0, 2, 1)
    shares = shares * np.exp(np.tril(sums[..., :, None] - sums[..., None, :]))
    query, key = (np.repeat(x, HEADS // GROUPS, 2) for x in (query, key))
    pairs = np.einsum("bthd,bshd->bhts", query, key) * shares
    return np.einsum("bhts,bshd->bthd", pairs, value * step[..., None])


@pytest.mark.parametrize("implementation", ["chunked", more("reference")])
@pytest.mark.parametrize(
    ("mixer", "by_hand"),
    [
        (Mamba3(groups=GROUPS, state=STATE), mamba3_by_hand),
        (LogLinear(groups=GROUPS, state=STATE), log_linear_by_hand),
        (LogLinear(3, groups=GROUPS, state=STATE), log_linear_by_hand),
    ],
)
def test_it_is_the_published_plain_form(mixer, by_hand, implementation):
    weights, arrays = drawn(mixer)
    found, expected = attend(mixer, weights, arrays, implementation), by_hand(weights, *arrays)
    chex.assert_trees_all_close(found / np.abs(expected).max(), expected / np.abs(expected).max(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mixer", [Mamba3(groups=GROUPS, state=STATE), LogLinear(4, groups=GROUPS, state=STATE)])
@pytest.mark.parametrize("scanned", [False, True])
def test_padding_behind_leaves_the_state_as_it_was(monkeypatch, mixer, scanned):
    """Prompts of several lengths go on together, each from its own last token."""
    if scanned:
        monkeypatch.setattr(type(mixer), "implementations", ("reference",))
    weights, arrays = drawn(mixer)
    *arrays, source = map(jnp.asarray, arrays)
    weights, lengths = {n: jnp.asarray(x) for n, x in weights.items()}, (LENGTH, 11)
    _, found = attention.advance(mixer, weights, *arrays, source=source, mask=Mask(key_lengths=jnp.array(lengths)))
    for sequence, length in enumerate(lengths):
        alone = [x[sequence : sequence + 1, :length] for x in (*arrays, source)]
        _, expected = attention.advance(mixer, weights, *alone[:3], source=alone[3])
        chex.assert_trees_all_close([x[sequence] for x in found], [x[0] for x in expected], rtol=0, atol=1e-10)
