"""One plot of a run: loss and accuracy of every split against the step."""

from pathlib import Path
from typing import Any


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """Draws the metrics that training and validation share; nothing where there are no lines.

    Args:
      lines: Of `metrics.jsonl`.
      path: Where the picture goes; its ending gives the format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    splits = {split: [line for line in lines if line["split"] == split] for split in ("train", "validation", "test")}
    if not (splits["validation"] or splits["train"]):
        return
    metrics = [name for name in (splits["validation"] or splits["train"])[0] if name in ("loss", "accuracy", "top5")]
    figure = Figure(figsize=(4.5 * len(metrics), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        for split, points in splits.items():
            steps, values = [p["step"] for p in points], [p[name] for p in points]
            axes.plot(steps, values, label=split, marker="o" if len(points) == 1 else None)
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
