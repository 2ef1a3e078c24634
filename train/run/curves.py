"""The plot of a run: loss and accuracy of every split against the step."""

from pathlib import Path
from typing import Any

from train.data.rows.splits import PARTS
from train.run.results import of_replica


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws the metrics that training and validation share, a line for each replica; does nothing where there are none.

    Args:
      lines: The lines of `metrics.jsonl`.
      path: The file to write; its suffix gives the format.
    """
    from matplotlib.figure import Figure

    splits = {split: [line for line in lines if line["split"] == split] for split in PARTS}
    if not (splits["validation"] or splits["train"]):
        return
    count = 1 + max(line.get("replica", 0) for line in lines)
    metrics = [name for name in (splits["validation"] or splits["train"])[0] if name in ("loss", "accuracy", "top5")]
    figure = Figure(figsize=(4.5 * len(metrics), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for split, points in splits.items():
            colour, width = f"C{list(splits).index(split)}", 0.8 if count > 1 else None
            for replica in range(count):
                measured = of_replica(points, replica)
                steps, values = [p["step"] for p in measured], [p[name] for p in measured]
                style = {"color": colour, "linewidth": width, "marker": "o" if len(measured) == 1 else None}
                axes.plot(steps, values, label=None if replica else split, **style)
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
