"""Count the operations of Hosseini's four mechanisms: by the paper's eq. 24, analytically, and by XLA.

    python -m analysis.flops --out=flops

Writes the pictures of Hosseini's Figs. 2, 3 and 4 (PNG and SVG) and `flops.json`, and prints the tables of
docs/flops.md.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from analysis.layer_operations import CONSTANTS, HEADS, RANGE, analytic, average, compiled, eq24, excess, grid
from analysis.pictures import operations, style
from analysis.tables import plain_markdown
from train import cli
from train.cli.files import check_place, write_text

FEW = (16, 64, 256)  # lengths and widths of programs compiled for heat maps and surfaces
COUNTS = {"eq. 24": eq24, "analytic": analytic, "compiled": compiled}
# Attention layers of Hosseini's tables: ℓ, d, heads.
SETTINGS = {
    "MNIST, Table 5": (64, 128, 4),
    "CIFAR-100, Table 6": (257, 256, 8),
    "ImageNet, Table 1": (196, 768, 12),
    "IMDB, Table 8": (32, 32, 4),
    "Amazon, Table 9": (64, 64, 4),
}


@cli.program(
    __doc__, cli.flag("--out", type=Path, required=True, metavar="DIR", help="the folder for pictures and JSON")
)
def main(flags: argparse.Namespace) -> None:
    """Counts the operations, prints the tables, and writes the JSON file and the pictures."""
    out = flags.out
    out.mkdir(parents=True, exist_ok=True)
    check_place(out / "flops.json")
    result = {"command": f"python -m analysis.flops --out={out}", "range": RANGE, "few": FEW} | counted()
    write_text(out / "flops.json", json.dumps(result, indent=1) + "\n")
    print(settings_table(result["settings"]), averages_table(result["averages"]), sep="\n\n")
    draw(out)


def counted() -> dict[str, Any]:
    """Counts operations in each way at the papers' settings, with the excess of standard over Efficient Attention."""
    settings = {}
    for name, sizes in SETTINGS.items():
        operations = {way: {m: count(m, *sizes) for m in CONSTANTS} for way, count in COUNTS.items()}
        ratios = {way: excess(count, *sizes) for way, count in COUNTS.items()}
        settings[name] = {"sizes": sizes, "operations": operations, "excess": ratios}
    formulas = {way: COUNTS[way] for way in ("eq. 24", "analytic")}
    averages = {way: {h: average(count, h) for h in HEADS} for way, count in formulas.items()}
    few = {f"{way}, few sizes": {h: average(count, h, FEW, FEW) for h in HEADS} for way, count in COUNTS.items()}
    greatest = {way: max(map(max, grid(count, 1, RANGE, RANGE))) for way, count in formulas.items()}
    return {"settings": settings, "averages": averages | few, "greatest": greatest}


def settings_table(settings: dict[str, Any]) -> str:
    """Makes a row for each setting: by how much standard exceeds Efficient Attention, by each count."""
    titles = ("layer", "ℓ", "d", "heads", "MFLOP standard", "Efficient", *COUNTS)
    rows = []
    for name, row in settings.items():
        counts = row["operations"]["analytic"]
        mega = [f"{counts[m] / 1e6:,.2f}" for m in ("dot_product", "efficient")]
        rows.append((name, *row["sizes"], *mega, *(f"{100 * row['excess'][way]:.1f} %" for way in COUNTS)))
    return plain_markdown(titles, rows)


def averages_table(averages: dict[str, dict[int, float]]) -> str:
    """Makes a row for each count: the mean excess with each number of heads."""
    rows = ((way, *(f"{100 * value:.1f} %" for value in row.values())) for way, row in averages.items())
    return plain_markdown(("count", *(f"{h} heads" for h in HEADS)), rows)


def draw(out: Path) -> None:
    """Draws all pictures."""
    lines = tuple(range(64, 1025, 64))
    panels = {"eq. 24": (eq24, lines), "analytic": (analytic, lines), "compiled": (compiled, (64, 256, 512, 1024))}
    style.save(operations.curves(panels, length=64, heads=1), out / "flops_curves")
    maps = {"eq. 24": (eq24, RANGE), "analytic": (analytic, RANGE), "compiled": (compiled, FEW)}
    style.save(operations.heat_maps(maps, HEADS), out / "flops_heat_maps")
    mesh = tuple(range(64, 513, 64))
    space = {"eq. 24": (eq24, mesh), "analytic": (analytic, mesh), "compiled": (compiled, FEW)}
    style.save(operations.surfaces(space), out / "flops_surfaces")


if __name__ == "__main__":
    sys.exit(main())
