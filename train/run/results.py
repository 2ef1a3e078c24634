"""The results of a finished run, as `result.json` has them and as lines of text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from train.run.progress import duration_text, numbers_text

Lines = list[dict[str, Any]]
Metrics = dict[str, float]
TIMES = ("final", "best")  # a result's metrics at the last and at the best step, each by split


def of_one(lines: Lines, steps: int, best_step: int, last: Metrics, best: Metrics, rate: str) -> dict[str, Any]:
    """Returns the result of one replica, without the entries that all replicas share.

    Args:
      lines: The replica's part of the record.
      steps: How many steps it was trained for.
      best_step: Its best step.
      last: Its test metrics after the last step.
      best: Its test metrics after the best step.
      rate: The name of the throughput in the record.
    """

    def at(step: int, test: Metrics) -> dict[str, Metrics]:
        epochs = [line["step"] for line in lines if line["split"] == "epoch" and line["step"] <= step]
        whole = _line(lines, "epoch", max(epochs, default=0), rate)
        return _line(lines, "train", step, rate) | whole | _line(lines, "validation", step, rate) | {"test": test}

    return {"steps": steps, "best_step": best_step, "final": at(steps, last), "best": at(best_step, best)}


def of_replica(lines: Lines, replica: int) -> Lines:
    """Returns a replica's part of a record; a record without replicas belongs to replica 0."""
    return [line for line in lines if line.get("replica", 0) == replica]


def of_all(outcomes: Sequence[dict[str, Any]], seeds: Sequence[int], shared: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of `result.json`; several replicas have their results, the mean and the standard deviation.

    Args:
      outcomes: The result of each replica, from `of_one`.
      seeds: The seed of each replica.
      shared: The entries that are the same for all, such as times and versions.
    """
    if len(outcomes) == 1:
        return outcomes[0] | shared
    return {
        "steps": outcomes[0]["steps"],
        "mean": _over(outcomes, np.mean),
        "std": _over(outcomes, lambda values: np.std(values, ddof=1)),
        **shared,
        "replicas": [
            {"replica": number, "seed": seed} | outcome | shared
            for number, (seed, outcome) in enumerate(zip(seeds, outcomes, strict=True))
        ],
    }


def mean(metrics: Sequence[Metrics]) -> Metrics:
    """Returns the mean of each metric over replicas."""
    return {name: float(np.mean([numbers[name] for numbers in metrics])) for name in metrics[0]}


def lines_of(result: dict[str, Any], best: str) -> Iterator[str]:
    """Yields a result as lines of text: test metrics at the last and the best step, and baselines.

    Args:
      result: The result from `of_all`.
      best: The metric that chooses the best step.
    """
    steps, trained = result["steps"], duration_text(result["seconds"])
    if "replicas" in result:
        final, chosen = (_spread_text(result, at) for at in TIMES)
        numbers = ", ".join(str(outcome["best_step"]) for outcome in result["replicas"])
        yield f"Of {len(result['replicas'])} replicas, mean ± standard deviation:"
        where = f"steps {numbers}"
    else:
        final, chosen = (numbers_text(result[at]["test"]) for at in TIMES)
        where = f"step {result['best_step']}"
    yield f"Test at the last step ({steps}), after {trained} of training: {final}"
    yield f"Test at {where}, of the best {best} on validation data: {chosen}"
    if result["baselines"]:
        yield "Baselines on test: " + numbers_text(result["baselines"])


def _line(lines: Lines, split: str, step: int, rate: str) -> dict[str, Metrics]:
    """Returns the metrics of a split after a step, by the split's name; nothing where there is no such line."""
    there = [line for line in lines if line["split"] == split and line["step"] == step]
    omitted = ("step", "split", "replica", "seconds", rate)
    return {split: {k: v for k, v in there[-1].items() if k not in omitted}} if there else {}


def _over(outcomes: Sequence[dict[str, Any]], statistic: Callable[[list[float]], float]) -> dict[str, Any]:
    """Returns a statistic of each metric, in the splits that every replica has."""
    return {
        at: {
            split: {name: float(statistic([outcome[at][split][name] for outcome in outcomes])) for name in metrics}
            for split, metrics in outcomes[0][at].items()
            if all(split in outcome[at] for outcome in outcomes)
        }
        for at in TIMES
    }


def _spread_text(result: dict[str, Any], at: str) -> str:
    means, stds = (result[statistic][at]["test"] for statistic in ("mean", "std"))
    return ", ".join(f"{name} {value:.4g} ± {stds[name]:.2g}" for name, value in means.items())
