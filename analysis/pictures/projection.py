"""The effect of projection attention on points (Sanger Fig. 1): each moves onto the surface of its neighbours."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.pictures import style
from attention import gaussian_attention
from attention.errors import UsageError
from train.cli.terminal import counted

MOST = 1000  # most points, and most steps
SHOWN = 0.02  # neighbours are drawn if their weight exceeds this fraction of the greatest weight


def project(points: Float[np.ndarray, "n d"], sigma: float, steps: int = 1) -> Float[np.ndarray, "steps+1 n d"]:
    """Moves points by self-attention with q = k = v (Sanger, eq. 14), not normalised; returns all steps and the start.

    Args:
      points: The points, one in each row.
      sigma: σ of the Gaussian weights.
      steps: How often the points are replaced by attention's output.

    Raises:
      UsageError: σ is not above 0, or the number of steps is not from 1 to `MOST`.
    """
    if not 1 <= steps <= MOST:
        raise UsageError(f"The number of steps must be from 1 to {MOST}, not {steps}.")
    path = [jnp.asarray(points)[:, None]]
    for _ in range(steps):
        path.append(gaussian_attention(path[-1], path[-1], sigma=sigma, normalise=False))
    return np.stack([np.asarray(step[:, 0]) for step in path])


def noisy_circle(count: int = 48, noise: float = 0.1, seed: int = 0) -> Float[np.ndarray, "count 2"]:
    """Draws points around the unit circle at random angles, with normal errors in both coordinates.

    Raises:
      UsageError: The number of points is not from 2 to `MOST`, or the seed or the noise is below 0.
    """
    if not 2 <= count <= MOST or seed < 0:
        raise UsageError(
            f"There must be 2 to {MOST} points and a seed from 0 on, but the points are {count} and the seed is {seed}."
        )
    if not 0 <= noise < np.inf:
        raise UsageError(f"The noise must be a number from 0 on, but it is {noise:g}.")
    rng = np.random.default_rng(seed)
    angles = rng.uniform(0, 2 * np.pi, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1) + noise * rng.standard_normal((count, 2))


def from_circle(points: Float[np.ndarray, "n 2"]) -> float:
    """Computes the mean distance of points to the unit circle."""
    return float(np.abs(np.linalg.norm(points, axis=-1) - 1).mean())


@style.quiet
def figure(points: Float[np.ndarray, "n 2"], sigmas: Sequence[float] = (0.05, 0.25, 1.0), steps: int = 1) -> Figure:
    """Draws the first point with its neighbours at the middle σ, as the paper does, then all points for each σ.

    Args:
      points: Points on a plane, around the unit circle.
      sigmas: σ of each panel of all points.
      steps: Number of steps of attention.
    """
    drawn = Figure(figsize=(2.4 * (len(sigmas) + 1), 3.4))
    first, *rest = drawn.subplots(1, len(sigmas) + 1)
    _one(first, points, sorted(sigmas)[len(sigmas) // 2])
    for axes, sigma in zip(rest, sigmas, strict=True):
        _all(axes, project(points, sigma, steps))
        axes.set_title(f"all, σ = {sigma:g}, {counted(steps, 'step')}")
    for axes in (first, *rest):
        axes.set(aspect="equal", xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    drawn.suptitle("Projection attention moves points towards the surface of their neighbours")
    return drawn


def _one(axes: Axes, points: Float[np.ndarray, "n 2"], sigma: float) -> None:
    """Draws the first point, its neighbours and its projection; the dotted line of a greater weight is thicker."""
    query, others = points[0], points[1:]
    q, k = (jnp.asarray(x).reshape(-1, 1, 2) for x in (query, others))
    out, weights = gaussian_attention(q, k, sigma=sigma, normalise=False, return_weights=True)
    out, weights = np.asarray(out).reshape(2), np.asarray(weights).reshape(-1)
    near = weights > SHOWN * weights.max()
    for neighbour, weight in zip(others[near], weights[near], strict=True):
        axes.plot(*zip(query, neighbour, strict=True), color="#c0c0c0", linewidth=0.7, zorder=1)
        axes.plot(*zip(out, neighbour, strict=True), ":", color=style.BLUE, linewidth=0.5 + 3 * weight / weights.max())
    axes.plot(*others[near].T, "s", color=style.BLUE, label="neighbours")
    axes.plot(*query, "s", color=style.RED, markersize=7, label="a point")
    axes.plot(*out, "s", markerfacecolor="white", color=style.RED, markersize=7, label="its projection")
    axes.set_title(f"one point, σ = {sigma:g}")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0))


def _all(axes: Axes, path: Float[np.ndarray, "steps n 2"]) -> None:
    angles = np.linspace(0, 2 * np.pi, 100)
    axes.plot(np.cos(angles), np.sin(angles), color="#c0c0c0", linewidth=0.8)
    axes.plot(path[..., 0], path[..., 1], color=style.RED, linewidth=0.6, alpha=0.6)
    axes.plot(*path[0].T, "s", color=style.BLUE, markersize=2.5)
    axes.plot(*path[-1].T, "s", markerfacecolor="white", color=style.RED, markersize=3)
    before, after = from_circle(path[0]), from_circle(path[-1])
    axes.set_xlabel(f"{before:.3f} from the circle before,\n{after:.3f} after")
