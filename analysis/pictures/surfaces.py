"""Scores over a plane (DiGiugno Fig. 1): the dot product's paraboloid, and the scores of a trained MLP on pairs.

Query and key are the same point (x, y), so the dot product is always x² + y². Neural Attention's scores come from the
MLP of a trained run; if d' > 2, the other coordinates are 0.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.figure import Figure

from analysis.pictures import style
from attention import reference
from attention.activations import ACTIVATIONS
from attention.errors import UsageError
from attention.scores.pairwise import Neural
from train.decode import trained

POINTS = 51  # along each coordinate; odd, so that 0 is one of them


@dataclasses.dataclass(frozen=True)
class Surface:
    """Scores z over the square in which x and y are within ±extent.

    Attributes:
      title: Name of the score.
      z: The scores, a row for each y.
      extent: Greatest x and y of the square.
    """

    title: str
    z: Float[np.ndarray, "Y X"]
    extent: float


def plane(extent: float, width: int = 2) -> Float[np.ndarray, "Y X width"]:
    """Lays out the points (x, y, 0, …) of a square; x runs along the second axis.

    Raises:
      UsageError: The extent is not a number above 0, or there are fewer than two coordinates.
    """
    if not 0 < extent < np.inf:
        raise UsageError(f"The extent of a plane must be a number above 0, but it is {extent:g}.")
    if width < 2:
        raise UsageError(
            f"A plane needs queries of at least 2 coordinates, but d' is {width}; train with dim=2 or more."
        )
    line = np.linspace(-extent, extent, POINTS)
    x, y = np.meshgrid(line, line)
    return np.stack([x, y, *[np.zeros_like(x)] * (width - 2)], axis=-1)


def paraboloid(extent: float) -> Surface:
    """Computes the surface of the dot product q·k at q = k = (x, y)."""
    return Surface("dot product", (plane(extent) ** 2).sum(-1), extent)


def neural(
    score: Neural, params: dict[str, Float[Array, "..."]], extent: float, head: int = 0, title: str = "neural"
) -> Surface:
    """Computes the surface of the MLP on pairs at q' = k' = (x, y), queries and keys after the down-projections.

    Args:
      score: The options of the score.
      params: Its arrays, by the names of `score.parameters`.
      extent: Greatest x and y of the square.
      head: The head whose weights are used, if heads have different weights.

    Raises:
      UsageError: Pairs have different weights, d' is 1, or there is no such head.
    """
    if score.pairs == "unique":
        raise UsageError("With unique pairs, each pair has another surface; train with pairs='shared'.")
    layers = score.layers(params)
    if score.per_head:
        heads = len(layers[0][0])
        if not 0 <= head < heads:
            raise UsageError(f"There is no head {head}; there are 0 to {heads - 1}.")
        layers = [tuple(piece[head] for piece in layer) for layer in layers]
    width = layers[0][0].shape[0] // 2
    points = jnp.asarray(plane(extent, width), layers[0][0].dtype)

    def scored(point: Float[Array, " width"]) -> Float[Array, ""]:
        return reference.neural_score(point, point, (), layers, ACTIVATIONS[score.activation])

    return Surface(title, np.asarray(jax.jit(jax.vmap(jax.vmap(scored)))(points)), extent)


def of_run(directory: Path, extent: float, layer: int = 0, head: int = 0, step: str = "best") -> Surface:
    """Computes the surface of a layer of a trained run.

    Args:
      directory: The run's work directory.
      extent: Greatest x and y of the square.
      layer: Index of the block in the model.
      head: See `neural`.
      step: `best` (needs a finished run), `last` or a step that has a checkpoint.

    Raises:
      UsageError: There is no such run, checkpoint or layer, or the layer's score is not an MLP on pairs.
    """
    task, params = trained.load(directory, step)
    if "block_0" not in params:
        raise UsageError(f"The model of {directory} is not a single stack; give a run of a ViT, GPT or RoBERTa.")
    scores = [layer.mechanism.score for layer in task.model.config.attention_layers(1)]
    if not 0 <= layer < len(scores):
        raise UsageError(f"{directory} has no layer {layer} of self-attention; there are {len(scores)}, from 0.")
    if not isinstance(scores[layer], Neural):
        raise UsageError(f"Layer {layer} of {directory} has no MLP on pairs; give a layer whose attention is neural.")
    title = f"{task.model.config.attention}, layer {layer + 1}"
    return neural(scores[layer], params[f"block_{layer}"]["attention"]["score"], extent, head, title)


@style.quiet
def figure(surfaces: Sequence[Surface]) -> Figure:
    """Draws the surfaces side by side."""
    drawn = Figure(figsize=(3.2 * len(surfaces), 3.1))
    for number, surface in enumerate(surfaces):
        axes = drawn.add_subplot(1, len(surfaces), number + 1, projection="3d")
        x, y = np.moveaxis(plane(surface.extent), -1, 0)
        look = {"cmap": style.SURFACE, "rcount": POINTS, "ccount": POINTS, "antialiased": False, "rasterized": True}
        axes.plot_surface(x, y, surface.z, **look)
        axes.set(xlabel="x", ylabel="y", zlabel="score")
        axes.set_title(style.plain(surface.title), y=0.98)
        axes.set_box_aspect(None, zoom=0.85)  # at the default zoom the label of the last axis is cut off
    drawn.suptitle("Scores where query and key are the same point (x, y)")
    return drawn
