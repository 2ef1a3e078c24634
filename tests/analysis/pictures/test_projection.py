"""Projection attention on points, against what can be said of it without computing it."""

import math

import numpy as np
import pytest

from analysis.pictures import projection
from attention import UsageError


def test_noisy_points_move_nearer_to_their_circle():
    points = projection.noisy_circle(seed=1)
    moved = projection.project(points, sigma=0.2)[1]
    assert projection.from_circle(moved) < 0.6 * projection.from_circle(points)


def test_of_two_points_each_weight_is_a_logistic_function():
    points = np.array([[0.0, 0.0], [3.0, 4.0]])
    own = 1 / (1 + math.exp(-(5**2) / (2 * 4.0**2)))
    _, moved = projection.project(points, sigma=4.0)
    np.testing.assert_allclose(moved, [(1 - own) * points[1], own * points[1]], rtol=1e-5)


def test_wrong_steps_points_and_widths():
    with pytest.raises(UsageError, match="must be from 1 to 1000, not 0"):
        projection.project(projection.noisy_circle(), 1.0, steps=0)
    with pytest.raises(UsageError, match="sigma must be above 0"):
        projection.project(projection.noisy_circle(), 0.0)
    with pytest.raises(UsageError, match="There must be 2 to 1000 points and a seed from 0 on"):
        projection.noisy_circle(count=1)
    with pytest.raises(UsageError, match="noise must be a number from 0 on, but it is nan"):
        projection.noisy_circle(noise=math.nan)
