"""Score surfaces against sums over hidden units."""

import math

import jax
import numpy as np
import pytest

from analysis.pictures import surfaces
from attention import UsageError
from attention.parameters import Sizes
from attention.scores.pairwise import Neural


def parameters(score, heads=2, head=4):
    declared = score.parameters(Sizes(8, heads, head, 3))
    keys = jax.random.split(jax.random.key(0), len(declared))
    return {name: jax.random.normal(key, p.shape) for key, (name, p) in zip(keys, declared.items(), strict=True)}


def test_the_paraboloid():
    line = np.linspace(-1.5, 1.5, surfaces.POINTS)
    np.testing.assert_allclose(surfaces.paraboloid(1.5).z, line**2 + line[:, None] ** 2)


@pytest.mark.parametrize(("dim", "scale"), [(2, False), (None, False), (2, True)])
def test_one_hidden_layer_is_a_sum_of_folded_planes(dim, scale):
    """Σ_m v_m max(0, (W_q x + W_k x)_m + b_m) + b_a, for x = (x, y, 0, …) as query and key (DiGiugno, eq. 4).

    It is divided by the root of the head's width where that is asked for.
    """
    score = Neural(dim=dim, hidden=(5,), scale=scale)
    declared = parameters(score)
    params, width = {name: np.asarray(array) for name, array in declared.items()}, dim or 4
    slopes = params["layer_0_kernel"][:width] + params["layer_0_kernel"][width:]
    x, y = np.meshgrid(*[np.linspace(-2, 2, surfaces.POINTS)] * 2)
    hidden = x[..., None] * slopes[0] + y[..., None] * slopes[1] + params["layer_0_bias"]
    expected = np.maximum(hidden, 0) @ params["layer_1_kernel"][:, 0] + params["layer_1_bias"][0]
    expected /= math.sqrt(4) if scale else 1
    np.testing.assert_allclose(surfaces.neural(score, declared, 2.0).z, expected, rtol=1e-4, atol=1e-5)


def test_each_head_may_have_its_own():
    score = Neural(hidden=(5,), per_head=True)
    params = parameters(score)
    for head in (0, 1):
        own = {name: array[head] for name, array in params.items()}
        shared = surfaces.neural(Neural(hidden=(5,)), own, 1.0)
        np.testing.assert_array_equal(surfaces.neural(score, params, 1.0, head).z, shared.z)
    with pytest.raises(UsageError, match="There is no head 2"):
        surfaces.neural(score, params, 1.0, head=2)


def test_scores_without_a_surface():
    with pytest.raises(UsageError, match="unique pairs"):
        surfaces.neural(Neural(pairs="unique"), {}, 1.0)
    with pytest.raises(UsageError, match="at least 2 coordinates"):
        surfaces.neural(Neural(dim=1), parameters(Neural(dim=1)), 1.0)
    with pytest.raises(UsageError, match="extent"):
        surfaces.paraboloid(0.0)
