"""What a finished run came to: `result.json`, and how it is told."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from train.run.progress import duration_text, numbers_text

Lines = list[dict[str, Any]]
Metrics = dict[str, float]
TIMES = ("final", "best")  # a result's metrics at the last and at the best step, each by split


def of_one(lines: Lines, steps: int, best_step: int, last: Metrics, best: Metrics, rate: str) -> dict[str, Any]:
    """What one replica came to, but for what all replicas share.

    Args:
      lines: Its part of the record.
      steps: That it was trained for.
      best_step: The best of them.
      last: Its test metrics after the last step.
      best: And after the best.
      rate: Name of the throughput in the record.
    """

    def at(step: int, test: Metrics) -> dict[str, Metrics]:
        epochs = [line["step"] for line in lines if line["split"] == "epoch" and line["step"] <= step]
        whole = _line(lines, "epoch", max(epochs, default=0), rate)
        return _line(lines, "train", step, rate) | whole | _line(lines, "validation", step, rate) | {"test": test}

    return {"steps": steps, "best_step": best_step, "final": at(steps, last), "best": at(best_step, best)}


def of_replica(lines: Lines, replica: int) -> Lines:
    """A replica's part of a record; all of a record without replicas."""
    return [line for line in lines if line.get("replica", 0) == replica]


def of_all(own: Sequence[dict[str, Any]], seeds: Sequence[int], shared: dict[str, Any]) -> dict[str, Any]:
    """What `result.json` holds: of one replica its own result, of several each one's, their mean and their spread.

    Args:
      own: Of each replica, from `of_one`.
      seeds: Of each replica.
      shared: What is the same for all, such as times and versions.
    """
    if len(own) == 1:
        return own[0] | shared
    return {
        "steps": own[0]["steps"],
        "mean": _over(own, np.mean),
        "std": _over(own, lambda values: np.std(values, ddof=1)),
        **shared,
        "replicas": [
            {"replica": number, "seed": seed} | found | shared
            for number, (seed, found) in enumerate(zip(seeds, own, strict=True))
        ],
    }


def mean(metrics: Sequence[Metrics]) -> Metrics:
    """Of each metric over replicas."""
    return {name: float(np.mean([own[name] for own in metrics])) for name in metrics[0]}


def told(found: dict[str, Any], best: str) -> Iterator[str]:
    """A result as a person reads it: test metrics at the last and the best step, and baselines.

    Args:
      found: From `of_all`.
      best: The metric that chooses the best step.
    """
    steps, trained = found["steps"], duration_text(found["seconds"])
    if "replicas" in found:
        final, chosen = (_spread_text(found, at) for at in TIMES)
        numbers = ", ".join(str(own["best_step"]) for own in found["replicas"])
        yield f"Of {len(found['replicas'])} replicas, mean ± standard deviation:"
        where = f"steps {numbers}"
    else:
        final, chosen = (numbers_text(found[at]["test"]) for at in TIMES)
        where = f"step {found['best_step']}"
    yield f"Test at the last step ({steps}), after {trained} of training: {final}"
    yield f"Test at {where}, of the best {best} on validation data: {chosen}"
    if found["baselines"]:
        yield "Baselines on test: " + numbers_text(found["baselines"])


def _line(lines: Lines, split: str, step: int, rate: str) -> dict[str, Metrics]:
    """Metrics of a split after a step, by the split's name; nothing where there is no such line."""
    there = [line for line in lines if line["split"] == split and line["step"] == step]
    omitted = ("step", "split", "replica", "seconds", rate)
    return {split: {k: v for k, v in there[-1].items() if k not in omitted}} if there else {}


def _over(own: Sequence[dict[str, Any]], statistic: Callable[[list[float]], float]) -> dict[str, Any]:
    """A statistic of each metric, in the splits that every replica has."""
    return {
        at: {
            split: {name: float(statistic([one[at][split][name] for one in own])) for name in metrics}
            for split, metrics in own[0][at].items()
            if all(split in one[at] for one in own)
        }
        for at in TIMES
    }


def _spread_text(found: dict[str, Any], at: str) -> str:
    means, stds = (found[statistic][at]["test"] for statistic in ("mean", "std"))
    return ", ".join(f"{name} {value:.4g} ± {stds[name]:.2g}" for name, value in means.items())
