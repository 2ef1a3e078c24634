"""Which source tokens a model looks at for each target token: 001's alignment matrix, as numbers and as a picture."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attention.errors import UsageError
from models.attention_weights import attention_weights
from train.data.tokenisers import Tokeniser


@dataclasses.dataclass(frozen=True)
class Alignment:
    """Weights of a translation.

    Attributes:
      source: Its source's tokens.
      target: Its tokens, each written while looking at the source.
      weights: A row for each target token, `(T, S)`, which sums to 1.
    """

    source: list[str]
    target: list[str]
    weights: Float[np.ndarray, "T S"]


def weights(
    model: nn.Module, params: dict[str, Any], source: Int[np.ndarray, " S"], tokens: Int[np.ndarray, " T"]
) -> Float[np.ndarray, "T S"]:
    """Weights of the attention to the source: of a Transformer's last block, the mean of its heads.

    Args:
      model: Of `models.encoder_decoder` or `models.seq2seq`, unbound.
      params: Its parameters.
      source: Tokens of a source, without padding.
      tokens: What the decoder reads, from the start token on.

    Raises:
      UsageError: the mechanism has no weights.
    """
    found = layers(model, params, source, tokens)
    return np.mean([kept for name, kept in found.items() if not name.endswith("/attention")][-1], axis=0)


def layers(
    model: nn.Module, params: dict[str, Any], source: Int[np.ndarray, " S"], tokens: Int[np.ndarray, " T"]
) -> dict[str, Float[np.ndarray, "N _ _"]]:
    """Weights of every attention of both sides, by its path and in the order of the layers; see `weights`."""
    inputs = (jnp.asarray(source)[None], jnp.array([len(source)]), jnp.asarray(tokens)[None])
    return {name: np.asarray(kept[0]) for name, kept in attention_weights(model, params, *inputs).items()}


def words(tokeniser: Tokeniser, ids: Int[np.ndarray, " n"]) -> list[str]:
    """The text of each token; a space is drawn as such."""
    return [tokeniser.decode([i]).replace(" ", "␣") or "</s>" for i in ids]


def draw(alignment: Alignment, path: Path) -> None:
    """Draws the matrix: source tokens above, target tokens at the left, dark where the weight is high.

    Raises:
      UsageError: the file cannot be written, or matplotlib knows no format of its name.
    """
    rows, columns = alignment.weights.shape
    figure = Figure(figsize=(1 + columns * 0.28, 1 + rows * 0.28), layout="constrained")
    matrix(figure.subplots(), alignment)
    try:
        with warnings.catch_warnings(action="ignore"):  # characters that the font has not are drawn as boxes
            figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be drawn ({error}); name a .png, .svg or .pdf that can be written.") from error


def matrix(axes: Axes, alignment: Alignment) -> None:
    """Draws the matrix with its tokens on axes that there are."""
    axes.imshow(alignment.weights, cmap="Greys", vmin=0, vmax=1)
    source, target = ([text.replace("$", r"\$") for text in side] for side in (alignment.source, alignment.target))
    axes.set_xticks(range(len(source)), source, rotation=90 if max(map(len, source)) > 2 else 0)
    axes.set_yticks(range(len(target)), target)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
