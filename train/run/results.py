"""The results of a finished run, as the content of `result.json` and as lines of text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from train.run import doubts
from train.run.progress import DIVERGED, Life, duration_text, numbers_text

Lines = list[dict[str, Any]]
Metrics = dict[str, float]
TIMES = ("final", "best")  # the metrics at the last and the best step, each by split


def replica_result(life: Life, step: int, last: Metrics, best: Metrics, lines: Lines, rate: str) -> dict[str, Any]:
    """Makes the result of one replica after the run's last `step`, without the entries that all share.

    `last` and `best` are its test metrics after its last and its best step, and `lines` its part of the record, where
    `rate` is the name of the throughput.
    """

    omitted = ("step", "split", "replica", "seconds", rate)

    def at(step: int, test: Metrics) -> dict[str, Metrics]:
        there = [line for line in lines if line["step"] == step or (line["split"] == "epoch" and line["step"] < step)]
        last = {line["split"]: {name: x for name, x in line.items() if name not in omitted} for line in there}
        return {split: last[split] for split in ("train", "epoch", "validation") if split in last} | {"test": test}

    steps, best_step = life.ended.get("step", step), life.best["step"]
    found = {"steps": steps, "best_step": best_step, "final": at(steps, last), "best": at(best_step, best)}
    return found | ({"ended": life.ended} if life.ended else {})


def lines_of_replica(lines: Lines, replica: int) -> Lines:
    """Takes a replica's part of a record; lines without a replica belong to replica 0."""
    return [line for line in lines if line.get("replica", 0) == replica]


def run_result(
    outcomes: Sequence[dict[str, Any]], seeds: Sequence[int], rates: Sequence[float], shared: dict[str, Any]
) -> dict[str, Any]:
    """Makes the content of `result.json` from each replica's result, seed and highest learning rate.

    Several replicas also have the mean and standard deviation over those that did not diverge. All share the entries
    `shared`, such as times and versions.
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


def _over(outcomes: Sequence[dict[str, Any]], statistic: Callable[[list[float]], float]) -> dict[str, Any]:
    """Computes a statistic of each metric in the splits that every replica has."""
    return {
        at: {
            split: {name: float(statistic([outcome[at][split][name] for outcome in outcomes])) for name in metrics}
            for split, metrics in outcomes[0][at].items()
            if all(split in outcome[at] for outcome in outcomes)
        }
        for at in TIMES
    }


def summary(result: dict[str, Any], best: str) -> Iterator[str]:
    """Yields a result as lines: test metrics at the last and the best step, chosen by `best`, baselines, and doubts."""
    steps, trained = result["steps"], duration_text(result["seconds"])
    if "replicas" in result:
        final, chosen = (_spread_text(result, at) for at in TIMES)
        numbers = ", ".join(str(outcome["best_step"]) for outcome in result["replicas"])
        yield f"Of {len(result['replicas'])} replicas, mean ± standard deviation:"
        where = f"steps {numbers}"
    else:
        final, chosen = (numbers_text(result[at]["test"]) for at in TIMES)
        where = f"step {result['best_step']}"
    if all(outcome["best_step"] == outcome["steps"] for outcome in result.get("replicas", [result])):
        yield f"Test at the last step ({steps}), also the best in {best} on validation data, after {trained}: {final}"
    else:
        yield f"Test at the last step ({steps}), after {trained} of training: {final}"
        yield f"Test at {where}, with the best {best} on validation data: {chosen}"
    if result["baselines"]:
        yield "Baselines on test: " + numbers_text(result["baselines"])
    test = result.get("mean", result)["best"]["test"]
    yield from map(doubts.caution, (*doubts.of_sizes(result), *doubts.of_metrics(test, result)))


def _spread_text(result: dict[str, Any], at: str) -> str:
    means, stds = (result[statistic][at]["test"] for statistic in ("mean", "std"))
    return ", ".join(f"{name} {value:.4g} ± {stds[name]:.2g}" for name, value in means.items())
