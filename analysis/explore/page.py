"""The explorer's page: one HTML file with its script, its style, and the weights as bytes."""

import base64
import gzip
import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int8, UInt8

from analysis.explore import patterns
from analysis.explore.extraction import Look, Looks
from analysis.pages import shell
from analysis.pictures.attention_maps import TextMaps
from attention.errors import UsageError

LARGEST = 64 << 20  # bytes of weights before compression; a browser holds a page of these well


def quantised(
    weights: Float[np.ndarray, "..."],
) -> tuple[UInt8[np.ndarray, "..."] | Int8[np.ndarray, "..."], float]:
    """Rounds weights to bytes, signed if a weight is negative, and returns them with the weight of one step.

    Rounding changes a weight by at most half a step: 1/510 of the greatest weight, or 1/254 if bytes are signed.
    """
    signed = bool((weights < 0).any())
    step = float(np.abs(weights).max(initial=0.0)) / (127 if signed else 255) or 1.0
    return np.rint(weights / step).astype(np.int8 if signed else np.uint8), step


def of(runs: Sequence[Looks]) -> str:
    """Writes the page of runs that see the same examples.

    Raises:
      UsageError: There are more weights than a browser holds.
    """
    return _page([(name, _about(run), [run]) for name, run in zip(_names(runs), runs, strict=True)])


def gallery(mechanisms: Mapping[str, Sequence[Looks]]) -> str:
    """Writes the page of mechanisms side by side, whose runs are of the same tasks and see the same examples.

    Raises:
      UsageError: There are more weights than a browser holds.
    """
    return _page([(name, "", runs) for name, runs in mechanisms.items()], gallery=True)


def _page(parts: Sequence[tuple[str, str, Sequence[Looks]]], gallery: bool = False) -> str:
    """Fills the template with parts side by side, each with a name, a description and runs."""
    _check_size([run for *_, runs in parts for run in runs])
    store = bytearray()
    data = {
        "gallery": gallery,
        "examples": [
            {"title": look.title, "image": look.image is not None, "grid": look.grid}
            for run in parts[0][-1]
            for look in run.examples
        ],
        "runs": [
            {
                "name": name,
                "model": about,
                "examples": [_look(look, run, store) for run in runs for look in run.examples],
            }
            for name, about, runs in parts
        ],
    }
    title = "What the heads see: " + html.escape(", ".join(name for name, *_ in parts))
    packed = base64.b64encode(gzip.compress(bytes(store), 6, mtime=0)).decode()
    return shell.filled(Path(__file__).with_suffix(".html"), data, TITLE=title, WEIGHTS=packed)


def _check_size(runs: Sequence[Looks]) -> None:
    stacks = (maps for run in runs for look in run.examples for maps in look.maps.values())
    size = sum(layer.size for maps in stacks for layer in maps.layers.values())
    if size > LARGEST:
        raise UsageError(
            f"The page would hold {size / 2**20:.0f} million weights, and a browser holds {LARGEST >> 20}; give fewer "
            "--examples, fewer --tokens or fewer runs."
        )


def _names(runs: Sequence[Looks]) -> list[str]:
    """Names the runs by their folders, or by their paths if folders have the same name."""
    paths = [run.directory.resolve() for run in runs]
    names = [path.name for path in paths]
    return names if len({*names}) == len(names) else [str(run.directory) for run in runs]


def _about(run: Looks) -> str:
    model, attentions = run.config.model, {*run.config.model.attentions().values()}
    return f"{model.name} · {', '.join(sorted(attentions))}"


def _add(values: Float[np.ndarray, "..."], store: bytearray) -> dict[str, Any]:
    """Appends a quantised array to the page's bytes; returns where it starts, its step, and whether it is signed."""
    numbers, step = quantised(np.asarray(values, np.float32))
    place = {"at": len(store), "step": step, "signed": numbers.dtype == np.int8}
    store += numbers.tobytes()
    return place


def _look(look: Look, run: Looks, store: bytearray) -> dict[str, Any]:
    image = None
    if look.image is not None:
        height, width, channels = look.image.shape
        image = _add(look.image, store) | {"height": height, "width": width, "channels": channels}
    stacks = [{"name": name} | _stack(look, name, maps, run, store) for name, maps in look.maps.items()]
    return {"note": look.note, "expected": look.expected, "image": image, "stacks": stacks}


def _stack(look: Look, name: str, maps: TextMaps, run: Looks, store: bytearray) -> dict[str, Any]:
    if not all(np.isfinite(layer).all() for layer in maps.layers.values()):
        raise UsageError(f"The weights of {run.directory} are not finite; give an earlier --step.")
    pairs = look.pairs(maps)
    layers = []
    for number, (path, weights) in enumerate(maps.layers.items()):
        heads = [_add(head, store) for head in (*weights, weights.mean(0))]
        heads += [_add(maps.rollout[number], store)] if maps.rollout else []
        scores = {pattern: np.round(row, 3).tolist() for pattern, row in patterns.scores(weights, pairs).items()}
        layers.append({"name": _mechanism(run, path, number), "maps": heads, "scores": scores})
    return {
        "rows": maps.rows,
        "columns": maps.columns,
        "heads": len(weights),
        "rollout": bool(maps.rollout),
        "causal": maps.causal,
        "layers": layers,
    }


def _mechanism(run: Looks, path: str, number: int) -> str:
    """Names a layer's mechanism."""
    model = run.config.model
    by_layer = getattr(model, "mechanisms", None)
    if by_layer is None:
        return model.attention
    place, _, kind = path.partition("/")
    field = "cross_attention" if kind == "cross" else f"{place.partition('_')[0]}_attention"
    return by_layer.get(field, by_layer["attention"])[number].name
