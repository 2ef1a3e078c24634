"""The style of all pictures, the colours of mechanisms, and writing files whose bytes are the same each time."""

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb, to_rgba
from matplotlib.figure import Figure

from attention.errors import UsageError
from train.cli.files import check_place

# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is too light for a line.
# Black is not quite black, since an SVG does not say which areas are black, and `ON_DARK` could not change them.
COLOURS = ("#1a1a1a", "#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")
BLACK, RED, BLUE, GREEN, ORANGE, SKY, PURPLE = COLOURS
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHADES = (0.0, 0.35, 0.6)  # how much white the colours of variants of one mechanism have
# Colours of weights: 0 is transparent, and the greatest nearly covers what is below; negative ones are blue.
HEAT = LinearSegmentedColormap.from_list("weights", [to_rgba(ORANGE, 0.0), to_rgba(ORANGE, 0.9)])
SIGNED = LinearSegmentedColormap.from_list(
    "signed weights",
    [(0, to_rgba(BLUE, 0.9)), (0.5, to_rgba(BLUE, 0.0)), (0.5, to_rgba(ORANGE, 0.0)), (1, to_rgba(ORANGE, 0.9))],
)
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
    "positional": (BLUE, "^"),
    "positional_factorised": (GREEN, "^"),
    "linear": (ORANGE, "^"),
    "delta": (RED, "^"),
    "sigmoid": (BLUE, "D"),
    "sink": (GREEN, "D"),
    "hard": (RED, "D"),
    "soft_cap": (ORANGE, "D"),
    "cosine": (SKY, "D"),
    "alibi": (PURPLE, "D"),
    "relative": (BLACK, "D"),
    "forgetting": (ORANGE, "P"),
    "path": (ORANGE, "X"),
    "gated": (RED, "P"),
    "softpick": (PURPLE, "X"),
    "scalable_softmax": (SKY, "X"),
    "power": (BLACK, "X"),
    "stick_breaking": (GREEN, "P"),
    "moba": (BLACK, "P"),
    "native_sparse": (BLUE, "P"),
    "deepseek_sparse": (BLUE, "X"),
    "differential": (RED, "v"),
    "differential_v2": (RED, "X"),
    "retention": (BLUE, "v"),
    "gated_linear": (ORANGE, "v"),
    "gated_delta": (GREEN, "v"),
    "state_space": (SKY, "v"),
    "kimi_delta": (PURPLE, "v"),
    "gated_delta2": (BLACK, "v"),
    "delta_product": (SKY, "P"),
    "rwkv7": (PURPLE, "P"),
    "mamba3": (BLACK, "*"),
    "log_linear": (GREEN, "X"),
}

# Ink, and what it is in an SVG on a dark page.
ON_DARK = {
    BLACK: "#f2f2f2",
    "#404040": "#d0d0d0",
    "#6a6a6a": "#bdbdbd",
    "#e5e5e5": "#3c3f48",
    "#c0c0c0": "#666a75",
    "#f2f2f2": "#2a2d36",
    "#ececec": "#262932",
    "#e6e6e6": "#22252e",
    "#ffffff": "#1e2129",
}

STYLE = Path(__file__).with_name("bench.mplstyle")
# A decorator: the function draws in this style.
quiet = matplotlib.rc_context(matplotlib.rc_params_from_file(STYLE, use_default_template=False))


def colours(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Chooses colour and marker of each label.

    They are those of the mechanism that the label names first; further labels of that mechanism have a lighter shade of
    its colour. Labels that name no mechanism take the first free pair.
    """
    labels = list(labels)
    words = {label: re.findall(r"\w+", label) for label in labels}
    named = {label: next((MECHANISMS[word] for word in words[label] if word in MECHANISMS), None) for label in labels}
    looks: dict[str, tuple[str, str]] = {}
    for label in sorted(labels, key=lambda label: named[label] is None):
        look = named[label]
        taken = {*looks.values()} | ({*MECHANISMS.values()} - {look} if look else set())
        candidates = _variants(*look) if look else ((colour, marker) for marker in MARKERS for colour in COLOURS)
        looks[label] = next((one for one in candidates if one not in taken), look or (BLACK, "o"))
    return {label: looks[label] for label in labels}


def _variants(colour: str, marker: str) -> Iterator[tuple[str, str]]:
    """Yields the shades of a colour, first with this marker and then with the others."""
    for other in sorted(MARKERS, key=lambda name: name != marker):
        for white in SHADES:
            yield to_hex([white + (1 - white) * channel for channel in to_rgb(colour)]), other


def scale(weights: Float[np.ndarray, "..."]) -> dict[str, Any]:
    """Chooses the colours and the limits for weights: from 0 to the greatest, to both sides if some are negative."""
    most = np.abs(weights).max()
    return {"cmap": SIGNED, "clim": (-most, most)} if weights.min() < 0 else {"cmap": HEAT, "clim": (0, most)}


def plain(text: str) -> str:
    """Escapes a text so that no dollar sign begins a formula."""
    return text.replace("$", r"\$")


@quiet
def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Writes a figure as PNG on white and as SVG for light and dark pages; the bytes are the same each time.

    Args:
      path: The path; with the ending `.png` or `.svg` this file alone is written. Its folder is made.

    Returns:
      The paths of the files.

    Raises:
      UsageError: The files cannot be written.
    """
    written = places(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # characters that the font lacks are drawn as boxes
            for file in written:
                WRITERS[file.suffix](figure, file)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be drawn ({error.strerror or error}); name a file that can be written."
        ) from error
    return written


def places(path: Path) -> tuple[Path, ...]:
    """Lists the files that `save` would write; raises UsageError where one cannot be put there, before it is drawn."""
    stem = path.with_suffix("") if path.suffix in WRITERS else path
    files = tuple(stem.parent / f"{stem.name}{end}" for end in WRITERS if stem == path or path.suffix == end)
    for file in files:
        check_place(file)
    return files


def _write_png(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})


def _write_svg(figure: Figure, path: Path) -> None:
    path.write_text(_drawn(figure), encoding="utf-8")


@quiet
def svg(figure: Figure) -> str:
    """Draws a figure as an SVG that stands within a page."""
    drawn = _drawn(figure)
    return drawn[drawn.index("<svg") :]


def _drawn(figure: Figure) -> str:
    """Draws an SVG without a ground, whose ink is light where the page around it is dark."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", facecolor="none", metadata={"Date": None})
    rules = (
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    dark = f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return drawn.getvalue().replace("</style>", dark, 1)


WRITERS = {".png": _write_png, ".svg": _write_svg}
