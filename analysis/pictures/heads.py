"""Drawings of what a model attends to: patches of images and tokens of texts."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from analysis.pictures import style
from analysis.pictures.attention_maps import CaptionMaps, ImageMaps, TextMaps
from train.decode import alignment

READABLE = 48  # the tokens of longer texts are left out, since they would be too small to read


@style.quiet
def of_heads(maps: ImageMaps) -> Figure:
    """Draws the first image, and beside it a row for each layer with each head's weights and the rollout so far.

    All weights share one scale and all rollouts another; see `style.scale`.
    """
    layers, heads = len(maps.layers), maps.layers[0].shape[1]
    figure = Figure(figsize=(1.9 + 0.95 * (heads + 2), 0.75 + 0.98 * max(layers, 2)))
    grid = figure.add_gridspec(layers, heads + 2, width_ratios=[1.3] + [1] * (heads + 1))
    panels = np.array(
        [[figure.add_subplot(grid[row, column + 1]) for column in range(heads + 1)] for row in range(layers)]
    )
    weights = [layer[0] for layer in maps.layers]
    rolled = [layer[0] for layer in maps.rollout]
    of_weights, of_rolled = style.scale(np.array(weights)), style.scale(np.array(rolled))
    for number, row in enumerate(panels):
        row[0].set_ylabel(f"layer {number + 1}")
        for head, axes in enumerate(row[:-1]):
            bar = _patches(axes, weights[number][head], of_weights, maps.images[0])
        rolled_bar = _patches(row[-1], rolled[number], of_rolled, maps.images[0])
    for axes, title in zip(panels[0], [*(f"head {head + 1}" for head in range(heads)), "rollout"], strict=True):
        axes.set_title(title)
    shown = figure.add_subplot(grid[:, 0])
    _image(shown, maps.images[0])
    shown.set_title(_classes(maps, 0))
    _bar(figure, bar, panels[:, :-1], "weight of a patch")
    _bar(figure, rolled_bar, panels[:, -1], "")
    figure.suptitle("What each head attends to, by layer")
    return figure


@style.quiet
def of_examples(maps: ImageMaps) -> Figure:
    """Draws several images, and below each image the mean over heads of each layer and the rollout of all layers."""
    rows = [layer.mean(axis=1) for layer in maps.layers] + [maps.rollout[-1]]
    names = [f"layer {number + 1}" for number in range(len(maps.layers))] + ["rollout"]
    figure = Figure(figsize=(max(4.0, 0.4 + 1.05 * len(maps.images)), 0.9 + 0.95 * (len(rows) + 1)))
    panels = figure.subplots(len(rows) + 1, len(maps.images), squeeze=False)
    for example, axes in enumerate(panels[0]):
        _image(axes, maps.images[example])
        axes.set_title(_classes(maps, example))
    for row, drawn, name in zip(panels[1:], rows, names, strict=True):
        for axes, weights, image in zip(row, drawn, maps.images, strict=True):
            _patches(axes, weights, style.scale(weights), image)
        row[0].set_ylabel(name)
    figure.suptitle("What each layer attends to, mean over heads")
    return figure


@style.quiet
def of_captions(maps: Sequence[CaptionMaps]) -> Figure:
    """Draws a row for each image: the image, and what each word of its caption looks at."""
    most = max(len(one.words) for one in maps)
    height, width = maps[0].image.shape[:2]
    side = 0.9 * width / height if width > height else 1.1  # inches
    figure = Figure(figsize=(0.3 + (side + 0.1) * (most + 1), 0.6 + len(maps) * (side * height / width + 0.35)))
    panels = figure.subplots(len(maps), most + 1, squeeze=False)
    for row, one in zip(panels, maps, strict=True):
        _image(row[0], one.image)
        for axes, word, look in itertools.zip_longest(row[1:], one.words, one.looks):
            if word is None:
                axes.set_visible(False)
                continue
            _patches(axes, look, style.scale(one.looks), one.image)
            axes.set_title(style.plain(word))
    figure.suptitle("What each word of a caption looks at")
    return figure


def _classes(maps: ImageMaps, example: int) -> str:
    return f"class {maps.labels[example]},\npredicted {maps.predictions[example]}"


def _bar(figure: Figure, image: AxesImage, panels: np.ndarray, label: str) -> None:
    """Draws the scale of weights on black, as they appear over a black image."""
    bar = figure.colorbar(image, ax=panels, label=label, shrink=0.9, aspect=25)
    bar.ax.set_facecolor("black")


@style.quiet
def of_tokens(maps: TextMaps) -> Figure:
    """Draws a row of the heads' matrices for each layer, and a last row with the rollout if there is one.

    Bright cells are large weights, and each matrix has its own scale. Tokens are written only where they are readable.
    """
    rows = [(f"layer {number + 1}, ", list(layer)) for number, layer in enumerate(maps.layers.values())]
    rows += [("", maps.rollout[-1:])] if maps.rollout else []
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
    figure.suptitle(
        "What each token attends to: queries in rows, keys in columns"
        if heads > 1
        else "Queries in rows, keys in columns"
    )
    return figure


def _image(axes: Axes, image: Float[np.ndarray, "H W C"]) -> None:
    axes.imshow(image.squeeze(-1) if image.shape[-1] == 1 else image, cmap="gray", vmin=0, vmax=1)
    axes.grid(False)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)


def _patches(
    axes: Axes, weights: Float[np.ndarray, "h w"], scale: dict[str, Any], image: Float[np.ndarray, "H W C"]
) -> AxesImage:
    """Draws the weights over a dimmed image."""
    _image(axes, 0.6 * image)
    height, width = image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    drawn = axes.imshow(weights, extent=extent)
    drawn.set(**scale)
    return drawn


def _matrix(axes: Axes, weights: Float[np.ndarray, "T S"], maps: TextMaps, *, rows: bool, columns: bool) -> None:
    """Draws a matrix, with its tokens on the left and above if they are asked for and few enough to read."""
    alignment.matrix(axes, alignment.Alignment(maps.columns, maps.rows, weights))
    axes.images[0].set(**style.scale(weights))
    readable = max(weights.shape) <= READABLE
    axes.grid(False)
    axes.spines[:].set_visible(False)
    axes.tick_params(labelleft=rows and readable, labeltop=columns and readable)
