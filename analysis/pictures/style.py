"""The style of all pictures, the colours of mechanisms, and writing files whose bytes are the same each time."""

import itertools
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

import matplotlib
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure

from attention.errors import UsageError

# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is too light for a line.
BLACK, ORANGE, SKY, GREEN, BLUE, RED, PURPLE = (
    "#000000",
    "#e69f00",
    "#56b4e9",
    "#009e73",
    "#0072b2",
    "#d55e00",
    "#cc79a7",
)
COLOURS = (BLACK, RED, BLUE, GREEN, ORANGE, SKY, PURPLE)
MARKERS = ("o", "s", "^", "D", "v")
# Colours of weights over an image: a weight of 0 is transparent, and the greatest weight nearly covers the image.
HEAT = LinearSegmentedColormap.from_list("weights", [to_rgba(ORANGE, 0.0), to_rgba(ORANGE, 0.9)])
SURFACE = "viridis"

# Mechanisms that one paper compares differ in colour; all mechanisms differ in colour or marker.
MECHANISMS = {
    "dot_product": (BLACK, "o"),
    "optimised": (SKY, "o"),
    "efficient": (GREEN, "o"),
    "super": (RED, "o"),
    "neural": (BLUE, "o"),
    "gaussian": (ORANGE, "o"),
    "mlp_qkv": (PURPLE, "o"),
    "mlp_kv": (GREEN, "s"),
    "dual_linear": (SKY, "s"),
    "mlp_marian": (PURPLE, "s"),
    "mlp_roberta": (PURPLE, "^"),
    "additive": (RED, "s"),
    "luong_dot": (BLACK, "s"),
    "luong_general": (BLUE, "s"),
    "luong_concat": (ORANGE, "s"),
    "decomposable": (SKY, "^"),
    "positional": (GREEN, "^"),
    "positional_factorised": (BLUE, "^"),
    "linear": (ORANGE, "^"),
    "delta": (RED, "^"),
    "sigmoid": (BLUE, "D"),
    "sink": (GREEN, "D"),
    "hard": (RED, "D"),
    "soft_cap": (ORANGE, "D"),
    "cosine": (SKY, "D"),
    "alibi": (PURPLE, "D"),
    "relative": (BLACK, "D"),
    "differential": (RED, "v"),
    "retention": (BLUE, "v"),
    "gated_linear": (ORANGE, "v"),
    "gated_delta": (GREEN, "v"),
}

STYLE = Path(__file__).with_name("bench.mplstyle")
# A decorator: the function draws in this style.
quiet = matplotlib.rc_context(matplotlib.rc_params_from_file(STYLE, use_default_template=False))


def colours(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Returns colour and marker of each label: those of the mechanism that it names first, else the first free pair."""
    labels = list(labels)
    looks: dict[str, tuple[str, str]] = {}
    for label in labels:
        look = next((MECHANISMS[word] for word in re.findall(r"\w+", label) if word in MECHANISMS), None)
        if look and look not in looks.values():
            looks[label] = look
    pairs = itertools.product(MARKERS, COLOURS)
    free = ((colour, marker) for marker, colour in pairs if (colour, marker) not in looks.values())
    others = itertools.cycle([*free] or [(BLACK, "o")])
    return {label: looks[label] if label in looks else next(others) for label in labels}


def plain(text: str) -> str:
    """Escapes a text so that no dollar sign begins a formula."""
    return text.replace("$", r"\$")


@quiet
def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Writes a figure as PNG and as SVG; the bytes are the same each time.

    Args:
      figure: The figure to write.
      path: The path without an ending, or with either ending; its folder is made.

    Returns:
      Both paths.

    Raises:
      UsageError: The files cannot be written.
    """
    stem = path.with_suffix("") if path.suffix in (".png", ".svg") else path
    png, svg = (stem.parent / f"{stem.name}.{ending}" for ending in ("png", "svg"))
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
            figure.savefig(png, metadata={"Software": None})
            figure.savefig(svg, metadata={"Date": None})
    except OSError as error:
        raise UsageError(
            f"{path} cannot be drawn ({error.strerror or error}); name a file that can be written."
        ) from error
    return png, svg
