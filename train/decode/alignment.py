"""The alignment matrix of Wikipedia's article on attention: how much each target token attends to each source token."""

import dataclasses
import warnings
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention.errors import UsageError
from models.layers.attention_weights import attention_weights
from train.cli.files import check_place
from train.data.tokenisers import Tokeniser


@dataclasses.dataclass(frozen=True)
class Alignment:
    """The attention weights of one translation."""

    source: list[str]
    target: list[str]
    weights: Float[np.ndarray, "T S"]  # a row for each target token; rows sum to 1


def layers(
    model: nn.Module, params: dict, source: Int[np.ndarray, " S"], tokens: Int[np.ndarray, " T"]
) -> dict[str, Float[np.ndarray, "1 N _ _"]]:
    """Measures every attention of the encoder and the decoder, by path, in the order of the layers.

    The decoder reads `tokens`, which begin with the start token. The source has no padding.
    """
    lengths = jnp.array([len(source)])
    return jax.device_get(attention_weights(model, params, source[None], lengths, tokens[None]))


def of_last_cross(layers: dict[str, Float[Array | np.ndarray, "1 N _ _"]]) -> Float[np.ndarray, "T S"]:
    """Averages over heads the weights of the last attention to the source."""
    return np.mean([kept[0] for name, kept in layers.items() if not name.endswith("/attention")][-1], axis=0)


def words(tokeniser: Tokeniser, ids: Int[np.ndarray, " n"]) -> list[str]:
    """Writes each token, spaces as ␣ and special tokens by their names."""
    names = {i: "</s>" if name == "end" else f"<{name}>" for name, i in tokeniser.special.items()}
    return [tokeniser.decode([i]).replace(" ", "␣") or names.get(int(i), "</s>") for i in ids]


def draw(alignment: Alignment, path: Path) -> None:
    """Draws the matrix: source tokens at the top, target tokens at the left, high weights dark."""
    check_place(path if path.suffix else path.with_suffix(".png"))  # matplotlib adds .png
    rows, columns = alignment.weights.shape
    figure = Figure(figsize=(1 + columns * 0.28, 1 + rows * 0.28), layout="constrained")
    matrix(figure.subplots(), alignment)
    try:
        with warnings.catch_warnings(action="ignore"):  # characters that the font lacks are drawn as boxes
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be drawn ({error}); name a .png, .svg or .pdf that can be written.") from error


def matrix(axes: Axes, alignment: Alignment) -> None:
    """Draws the matrix and its tokens on axes."""
    axes.imshow(alignment.weights, cmap="Greys", vmin=0, vmax=1)
    source, target = ([text.replace("$", r"\$") for text in side] for side in (alignment.source, alignment.target))
    axes.set_xticks(range(len(source)), source, rotation=90 if max(map(len, source)) > 2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
