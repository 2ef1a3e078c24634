"""The results of a finished run, as `result.json` has them and as lines of text."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from train.run.lives import DIVERGED
from train.run.progress import duration_text, numbers_text

Lines = list[dict[str, Any]]
Metrics = dict[str, float]
TIMES = ("final", "best")  # a result's metrics at the last and at the best step, each by split


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one replica's training came out.

    Attributes:
      steps: How many steps it was trained for.
      best_step: Its best step.
      last: Its test metrics after the last step.
      best: Its test metrics after the best step.
      ended: Why and when it ended before the run did; {} where it did not. See `train.run.lives`.
    """

    steps: int
    best_step: int
    last: Metrics
    best: Metrics
    ended: dict[str, Any]

    def result(self, lines: Lines, rate: str) -> dict[str, Any]:
        """Makes its result, without the entries that all replicas share.

        Args:
          lines: The replica's part of the record.
          rate: The name of the throughput in the record.
        """

        def at(step: int, test: Metrics) -> dict[str, Metrics]:
            epochs = [line["step"] for line in lines if line["split"] == "epoch" and line["step"] <= step]
            whole = _line(lines, "epoch", max(epochs, default=0), rate)
            return _line(lines, "train", step, rate) | whole | _line(lines, "validation", step, rate) | {"test": test}

        early = {"ended": self.ended} if self.ended else {}
        found = {"final": at(self.steps, self.last), "best": at(self.best_step, self.best)}
        return {"steps": self.steps, "best_step": self.best_step, **found, **early}


def of_replica(lines: Lines, replica: int) -> Lines:
    """Returns a replica's part of a record; a record without replicas belongs to replica 0."""
    return [line for line in lines if line.get("replica", 0) == replica]


def of_all(
    outcomes: Sequence[dict[str, Any]], seeds: Sequence[int], rates: Sequence[float], shared: dict[str, Any]
) -> dict[str, Any]:
    """Makes the content of `result.json`; of several replicas, each result, and the mean and standard deviation.

    Those are over the replicas that did not diverge.

    Args:
      outcomes: The result of each replica.
      seeds: The seed of each replica.
      rates: The highest learning rate of each replica.
      shared: The entries that are the same for all, such as times and versions.
    """
    if len(outcomes) == 1:
        return outcomes[0] | shared
    several = len(set(rates)) > 1
    good = [outcome for outcome in outcomes if outcome.get("ended", {}).get("why") != DIVERGED] or outcomes
    return {
        "steps": max(outcome["steps"] for outcome in outcomes),
        "mean": _over(good, np.mean),
        "std": _over(good, lambda values: np.std(values, ddof=min(1, len(values) - 1))),
        **shared,
        "replicas": [
            {"replica": number, "seed": seed} | ({"learning_rate": rate} if several else {}) | outcome | shared
            for number, (seed, rate, outcome) in enumerate(zip(seeds, rates, outcomes, strict=True))
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
