"""Training curves, mean and spread over seeds, against steps, epochs or seconds (DiGiugno Fig. 9-11, Zhang Fig. 1-4).

    python -m analysis.pictures curves runs/super-0 runs/super-1 runs/efficient-0 runs/efficient-1 --out=curves

A group has a label and the records (lines of `metrics.jsonl`) of runs that differ in the seed alone.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import archive
from analysis.pictures import style
from analysis.runs import MECHANISM, of_seed
from attention.errors import UsageError, check_known, in_line
from train.cli.files import read_record
from train.cli.terminal import counted
from train.loading.leaves import flatten
from train.run import workdir

Record = dict[str, Any]
Groups = Mapping[str, Sequence[Sequence[Record]]]
Curve = Float[np.ndarray, "3 _"]  # a seed's steps in increasing order, the horizontal coordinate there, and the metric

SPLITS = {"validation": "-", "train": ":"}  # and their line styles
AXES = ("step", "epoch", "seconds")
NO_METRICS = ("step", "split", "replica", "seconds", "examples_per_second", "tokens_per_second")
USUAL = ("loss", "accuracy", "perplexity", "bleu")  # drawn by default if all runs have them
SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)  # ticks of accuracies


def band(curves: Sequence[Curve]) -> Float[np.ndarray, "3 n"]:
    """Computes the mean and spread of curves that need not have the same steps.

    x and y are averaged over seeds at equal steps, so seeds are compared after the same amount of training, whatever
    their speed. Each curve is interpolated linearly at the steps of all curves, within the range that all cover.

    Returns:
      The mean horizontal coordinate, and the mean and the standard deviation of the metric (0 for a single seed).

    Raises:
      UsageError: The curves have no steps in common.
    """
    first, last = max(steps[0] for steps, *_ in curves), min(steps[-1] for steps, *_ in curves)
    if first > last:
        raise UsageError(
            f"Seeds of one curve have no steps in common: one begins at step {first:g}, another ends at {last:g}; give "
            "them labels of their own, such as a=DIR b=DIR."
        )
    steps = np.unique(np.concatenate([curve[0] for curve in curves]))
    steps = steps[(steps >= first) & (steps <= last)]
    x, y = (np.array([np.interp(steps, curve[0], curve[side]) for curve in curves]) for side in (1, 2))
    spread = y.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(steps))
    return np.stack([x.mean(axis=0), y.mean(axis=0), spread])


def read(runs: Sequence[str]) -> dict[str, list[list[Record]]]:
    """Reads the groups of work directories, each `DIR` or `LABEL=DIR`; the default label is the run's attention.

    A folder above runs, such as a sweep's, stands for all of them that have metrics. If there are several places, as in
    `runs/*`, those without a run are named and skipped.

    Raises:
      UsageError: The only folder is not a run and holds none, or a run has no metrics yet.
    """
    groups: dict[str, list[list[Record]]] = {}
    passed = []
    for text in runs:
        label, folder = _label(text)
        paths = _runs_in(folder)
        if not paths and folder.exists() and len(runs) > 1:
            passed.append(folder.name)
            continue
        for path in paths or [folder]:
            config = workdir.read_config(path)
            if not (path / "metrics.jsonl").is_file():
                raise UsageError(f"{path} has no metrics.jsonl yet; train it first.")
            mechanism = flatten(config).get(MECHANISM, path.name)
            groups.setdefault(label or in_line(str(mechanism)), []).append(read_record(path))
    if passed:
        print(archive.passed_over(passed))
    return groups


def _runs_in(folder: Path) -> list[Path]:
    """Lists the folder itself if it is a run, else the runs below it that have metrics."""
    found = list(archive.work_directories(folder)) if folder.is_dir() else []
    return found if found == [folder] else [path for path in found if (path / "metrics.jsonl").is_file()]


def _label(text: str) -> tuple[str, Path]:
    """Splits `LABEL=DIR` where both parts may have an = sign: DIR is the longest ending that is a folder."""
    ends = [-1] + [place for place, character in enumerate(text) if character == "="]
    split_at = next((end for end in ends if Path(text[end + 1 :]).is_dir()), ends[-1])
    return text[: max(split_at, 0)], Path(text[split_at + 1 :])


def split_replicas(records: Sequence[Record]) -> list[list[Record]]:
    """Splits the records of a run by seed; a run that trained one seed has one list."""
    replicas = sorted({line.get("replica", 0) for line in records})
    return [of_seed(records, replica, len(replicas)) for replica in replicas]


def metrics_of(groups: Groups) -> list[str]:
    """Lists the metrics that every run has on validation data, in the order of the first run."""
    lines = [line for runs in groups.values() for run in runs for line in run if line["split"] == "validation"]
    if not lines:
        return []
    return [name for name in lines[0] if name not in NO_METRICS and all(name in line for line in lines)]


@style.quiet
def figure(
    groups: Groups,
    metrics: Sequence[str] = (),
    axes: Sequence[str] = ("step", "seconds"),
    epoch: float = 0.0,
    title: str = "",
) -> Figure:
    """Draws a row for each metric and a column for each axis; a band is one standard deviation to either side.

    Args:
      groups: The records of each label's runs.
      metrics: The metrics to draw; by default the usual ones that all runs have.
      axes: The horizontal axes: `step`, `epoch` or `seconds` (of training, without evaluation).
      epoch: Number of steps in an epoch, for the axis `epoch`.
      title: The title; '' says what is drawn.

    Raises:
      UsageError: There are no runs or no validation data, a metric or an axis does not exist, or seeds of one label
        have no steps in common.
    """
    groups = {label: [seed for run in runs for seed in split_replicas(run)] for label, runs in groups.items()}
    metrics = _checked(groups, metrics, axes, epoch)
    drawn = Figure(figsize=(max(4.8, 3.4 * len(axes)), 0.6 + 2.3 * len(metrics) + 0.15 * len(groups)))
    looks = style.colours(groups)
    for row, metric in zip(drawn.subplots(len(metrics), len(axes), squeeze=False), metrics, strict=True):
        for place, axis in zip(row, axes, strict=True):
            for label, runs in groups.items():
                for split, dashes in SPLITS.items():
                    _draw_band(place, _curves(runs, split, metric, axis, epoch), *looks[label], dashes)
            place.set(xlabel=f"{axis} of training" if axis == "seconds" else axis)
            _scale(place, metric)
        row[0].set_ylabel(metric)
    drawn.suptitle(style.plain(title or f"{' and '.join(metrics).capitalize()} during training"))
    _legend(drawn, groups, looks)
    return drawn


def _checked(groups: Groups, metrics: Sequence[str], axes: Sequence[str], epoch: float) -> Sequence[str]:
    valid = metrics_of(groups)
    if not valid:
        raise UsageError("There is nothing to draw: no run has metrics of validation data that all share.")
    for metric in metrics:
        check_known("metric that all runs have on validation data", metric, valid)
    for axis in axes:
        check_known("axis", axis, AXES)
    if "epoch" in axes and not 0 < epoch < np.inf:
        raise UsageError(f"The axis epoch needs the number of steps in an epoch, not {epoch:g}; give --epoch=STEPS.")
    return metrics or [name for name in USUAL if name in valid] or valid[:1]


def _curves(runs: Sequence[Sequence[Record]], split: str, metric: str, axis: str, epoch: float) -> list[Curve]:
    """Lists the curves of the seeds that have this metric on this split."""
    field, unit = ("step", epoch) if axis == "epoch" else (axis, 1.0)
    lines = [[line for line in run if line["split"] == split and metric in line] for run in runs]
    return [
        np.array([(line["step"], line[field] / unit, line[metric]) for line in run], float).T for run in lines if run
    ]


def _draw_band(axes: Axes, curves: list[Curve], colour: str, marker: str, dashes: str) -> None:
    if not curves:
        return
    x, mean, spread = band(curves)
    few = marker if len(x) <= 30 and dashes == "-" else None
    axes.plot(x, mean, dashes, color=colour, marker=few, linewidth=1.5 if dashes == "-" else 1.0)
    if len(curves) > 1:
        axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)


def _scale(axes: Axes, metric: str) -> None:
    """Sets the vertical scale: logarithmic for perplexity, and logit to tell accuracies near 1 apart."""
    if metric == "perplexity":
        axes.set_yscale("log")
    heights = np.concatenate([line.get_ydata() for line in axes.lines] or [[]])
    inside = heights[(heights > 0) & (heights < 1)]
    if metric == "accuracy" and inside.size and inside.max() > 0.9:
        axes.set_yscale("logit")
        axes.set_yticks(SHARES, [f"{share:g}" for share in SHARES])
        axes.set_yticks([], minor=True)
        axes.set_ylim(0.9 * inside.min(), 1 - 0.8 * (1 - inside.max()))


def _legend(drawn: Figure, groups: Groups, looks: Mapping[str, tuple[str, str]]) -> None:
    handles = [
        Line2D([], [], color=colour, marker=marker, label=style.plain(f"{label} ({_seeds(groups[label])})"))
        for label, (colour, marker) in looks.items()
    ]
    handles += [Line2D([], [], color="#808080", linestyle=dashes, label=split) for split, dashes in SPLITS.items()]
    widest = 0.7 + 0.075 * max(len(handle.get_label()) for handle in handles)  # inches, about
    columns = max(1, min(len(handles), int(drawn.get_figwidth() / widest)))
    drawn.legend(handles=handles, loc="outside lower center", ncols=columns)


def _seeds(runs: Sequence[Sequence[Record]]) -> str:
    """Counts a curve's seeds, and names the first end if seeds end at different steps."""
    last = [max((line["step"] for line in run if line["split"] == "validation"), default=0) for run in runs]
    ended = f", of which one ends at step {min(last)}" if min(last) < max(last) else ""
    return counted(len(runs), "seed") + ended
