"""The style of all pictures, the colours of mechanisms, and reproducible files."""

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

# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is too light for lines.
# Black is not quite black: an SVG does not name black, its default, so `ON_DARK` could not replace it.
COLOURS = ("#1a1a1a", "#d55e00", "#0072b2", "#009e73", "#e69f00", "#56b4e9", "#cc79a7")
BLACK, RED, BLUE, GREEN, ORANGE, SKY, PURPLE = COLOURS
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SHADES = (0.0, 0.35, 0.6)  # share of white in the colours of a mechanism's variants
# Colours of weights: 0 is transparent, the greatest is nearly opaque, and negative ones are blue.
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

# Colours of ink, and their replacements on a dark page.
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

ENDINGS = (".png", ".svg")
STYLE = Path(__file__).with_name("bench.mplstyle")
# Decorates a function that draws in this style.
quiet = matplotlib.rc_context(matplotlib.rc_params_from_file(STYLE, use_default_template=False))


def colours(labels: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Chooses a colour and a marker for each label.

    A label takes those of the first mechanism that it names, and further labels of the same mechanism lighter shades.
    Labels that name no mechanism take the first free pair.
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
    """Yields the shades of a colour with this marker, then with the others."""
    for other in sorted(MARKERS, key=lambda name: name != marker):
        for white in SHADES:
            yield to_hex([white + (1 - white) * channel for channel in to_rgb(colour)]), other


def scale(weights: Float[np.ndarray, "..."]) -> dict[str, Any]:
    """Chooses colours and limits for weights: from 0 to the greatest, or symmetric if some are negative."""
    most = np.abs(weights).max()
    return {"cmap": SIGNED, "clim": (-most, most)} if weights.min() < 0 else {"cmap": HEAT, "clim": (0, most)}


def plain(text: str) -> str:
    """Escapes dollar signs, which would begin a formula."""
    return text.replace("$", r"\$")


@quiet
def save(figure: Figure, path: Path) -> tuple[Path, ...]:
    """Writes a figure as PNG on white and as SVG for light and dark pages, with the same bytes each time.

    Args:
      path: The path without an ending; with `.png` or `.svg` only this file is written. Its folder is created.

    Returns:
      The paths of the files.

    Raises:
      UsageError: The files cannot be written.
    """
    written = places(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph")  # characters missing from the font become boxes
            for file in written:
                if file.suffix == ".png":
                    figure.savefig(file, metadata={"Software": None})
                else:
                    file.write_text(_drawn(figure), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path} cannot be drawn ({error.strerror or error}); name a file that can be written."
        ) from error
    return written


def places(path: Path) -> tuple[Path, ...]:
    """Lists the files that `save` writes; raises a UsageError if one cannot be written."""
    stem = path.with_suffix("") if path.suffix in ENDINGS else path
    files = tuple(stem.parent / f"{stem.name}{end}" for end in ENDINGS if stem == path or path.suffix == end)
    for file in files:
        check_place(file)
    return files


@quiet
def svg(figure: Figure) -> str:
    """Draws a figure as an SVG to be embedded in a page."""
    drawn = _drawn(figure)
    return drawn[drawn.index("<svg") :]


def _drawn(figure: Figure) -> str:
    """Draws an SVG with a transparent background, whose ink is light on dark pages."""
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", facecolor="none", metadata={"Date": None})
    rules = (
        f'[style*="{kind}: {light}"]{{{kind}:{dark} !important}}'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    dark = f"@media (prefers-color-scheme:dark){{{''.join(rules)}}}</style>"
    return drawn.getvalue().replace("</style>", dark, 1)
