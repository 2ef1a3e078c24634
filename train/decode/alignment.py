"""The alignment matrix (Wikipedia's article on attention): which source tokens each target token attends to."""

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
    weights: Float[np.ndarray, "T S"]  # a row for each target token, which sums to 1


def weights(
    model: nn.Module, params: dict, source: Int[np.ndarray, " S"], tokens: Int[np.ndarray, " T"]
) -> Float[np.ndarray, "T S"]:
    """Measures the attention to a source without padding of tokens that the decoder reads, from the start token on.

    For a Transformer, it is the mean over heads of its last block.
    """
    return of_last_cross(_weights(model, params, source, tokens))


def of_last_cross(weights: dict[str, Float[Array, "1 N T S"]]) -> Float[np.ndarray, "T S"]:
    """Averages the heads of the last attention to the source, from the weights of all layers by path."""
    return np.mean([kept[0] for name, kept in weights.items() if not name.endswith("/attention")][-1], axis=0)


def layers(
    model: nn.Module, params: dict, source: Int[np.ndarray, " S"], tokens: Int[np.ndarray, " T"]
) -> dict[str, Float[np.ndarray, "N _ _"]]:
    """Measures every attention of both sides by its path, in the order of the layers; see `weights`."""
    return {name: np.asarray(kept[0]) for name, kept in _weights(model, params, source, tokens).items()}


def _weights(model: nn.Module, params: dict, source: np.ndarray, tokens: np.ndarray) -> dict[str, jax.Array]:
    lengths = jnp.array([len(source)])
    return attention_weights(model, params, jnp.asarray(source)[None], lengths, jnp.asarray(tokens)[None])


def words(tokeniser: Tokeniser, ids: Int[np.ndarray, " n"]) -> list[str]:
    """Writes each token; spaces are shown as ␣, and special tokens by their names."""
    names = {i: "</s>" if name == "end" else f"<{name}>" for name, i in tokeniser.special.items()}
    return [tokeniser.decode([i]).replace(" ", "␣") or names.get(int(i), "</s>") for i in ids]


def draw(alignment: Alignment, path: Path) -> None:
    """Draws the matrix: source tokens above, target tokens at the left, dark where the weight is high."""
    check_place(path if path.suffix else path.with_suffix(".png"))  # which matplotlib adds
    rows, columns = alignment.weights.shape
    figure = Figure(figsize=(1 + columns * 0.28, 1 + rows * 0.28), layout="constrained")
    matrix(figure.subplots(), alignment)
    try:
        with warnings.catch_warnings(action="ignore"):  # characters that the font lacks are drawn as boxes
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be drawn ({error}); name a .png, .svg or .pdf that can be written.") from error


def matrix(axes: Axes, alignment: Alignment) -> None:
    """Draws the matrix and its tokens on existing axes."""
    axes.imshow(alignment.weights, cmap="Greys", vmin=0, vmax=1)
    source, target = ([text.replace("$", r"\$") for text in side] for side in (alignment.source, alignment.target))
    axes.set_xticks(range(len(source)), source, rotation=90 if max(map(len, source)) > 2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
