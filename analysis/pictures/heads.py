"""Drawings of what a model attends to: patches of images and tokens of texts."""

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from analysis.pictures import style
from analysis.pictures.attention_maps import ImageMaps, TextMaps
from train.decode import alignment

READABLE = 48  # the tokens of longer texts are not written, since they could not be read


@style.quiet
def of_heads(maps: ImageMaps, example: int = 0) -> Figure:
    """Draws one image: a row for each layer with the weights of each head and the rollout up to that layer.

    All weights are drawn on one scale and all rollouts on another, both from 0 to the greatest value.
    """
    layers, heads = len(maps.layers), maps.layers[0].shape[1]
    figure = Figure(figsize=(1.6 + 0.95 * (heads + 2), 0.4 + 0.98 * layers))
    panels = figure.subplots(layers, heads + 2, squeeze=False)
    weights = [layer[example] for layer in maps.layers]
    rolled = [layer[example] for layer in maps.rollout]
    most, most_rolled = np.max(weights), np.max(rolled)
    for number, row in enumerate(panels):
        _image(row[0], maps.images[example])
        row[0].set_ylabel(f"layer {number + 1}", visible=True)
        for head, axes in enumerate(row[1:-1]):
            bar = _patches(axes, weights[number][head], most, maps.images[example])
        rolled_bar = _patches(row[-1], rolled[number], most_rolled, maps.images[example])
    titles = [f"class {maps.labels[example]}", *(f"head {head + 1}" for head in range(heads)), "rollout"]
    for axes, title in zip(panels[0], titles, strict=True):
        axes.set_title(title)
    figure.colorbar(bar, ax=panels[:, 1:-1], label="weight of a patch", shrink=0.9, aspect=25)
    figure.colorbar(rolled_bar, ax=panels[:, -1], shrink=0.9, aspect=25)
    return figure


@style.quiet
def of_examples(maps: ImageMaps) -> Figure:
    """Draws several images, and below each the mean over heads of every layer and the rollout of all layers."""
    rows = [layer.mean(axis=1) for layer in maps.layers] + [maps.rollout[-1]]
    names = [f"layer {number + 1}" for number in range(len(maps.layers))] + ["rollout"]
    figure = Figure(figsize=(0.4 + 0.95 * len(maps.images), 0.3 + 0.95 * (len(rows) + 1)))
    panels = figure.subplots(len(rows) + 1, len(maps.images), squeeze=False)
    for axes, image, label in zip(panels[0], maps.images, maps.labels, strict=True):
        _image(axes, image)
        axes.set_title(f"class {label}")
    for row, drawn, name in zip(panels[1:], rows, names, strict=True):
        for axes, weights, image in zip(row, drawn, maps.images, strict=True):
            _patches(axes, weights, weights.max(), image)
        row[0].set_ylabel(name)
    return figure


@style.quiet
def of_tokens(maps: TextMaps) -> Figure:
    """Draws a row of heads' matrices for each layer, and last the rollout where there is one; dark is a high weight.

    Tokens are written where they can be read. The scale of each matrix ends at its greatest weight.
    """
    rows = [(f"layer {number + 1}, ", list(layer)) for number, layer in enumerate(maps.layers.values())]
    rows += [] if maps.rollout is None else [("", [maps.rollout])]
    width, height = (0.5 + 0.14 * len(side) for side in (maps.columns, maps.rows))
    heads = max(len(layer) for _, layer in rows)
    figure = Figure(figsize=(0.8 + heads * width, 0.8 + len(rows) * (height + 0.2)))
    panels = figure.subplots(len(rows), heads, squeeze=False)
    for number, (name, layer) in enumerate(rows):
        for head, axes in enumerate(panels[number]):
            if head >= len(layer):
                axes.set_visible(False)
                continue
            _matrix(axes, layer[head], maps, rows=head == 0, columns=number == 0)
            axes.set_title(f"{name}head {head + 1}" if name else "rollout")
    return figure


def _image(axes: Axes, image: Float[np.ndarray, "H W C"]) -> None:
    axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _patches(
    axes: Axes, weights: Float[np.ndarray, "h w"], most: float, image: Float[np.ndarray, "H W C"]
) -> AxesImage:
    """Draws the weights over a dimmed image."""
    _image(axes, 0.6 * image)
    height, width = image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    return axes.imshow(weights, cmap=style.HEAT, vmin=0, vmax=most, extent=extent)


def _matrix(axes: Axes, weights: Float[np.ndarray, "T S"], maps: TextMaps, *, rows: bool, columns: bool) -> None:
    """Draws one matrix, with its tokens at the left and above where they are asked for and few enough."""
    alignment.matrix(axes, alignment.Alignment(maps.columns, maps.rows, weights))
    axes.images[0].set_clim(0, weights.max())
    readable = max(weights.shape) <= READABLE
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelleft=rows and readable, labeltop=columns and readable)
