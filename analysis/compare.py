"""Comparisons of groups of runs with a baseline: which tests apply, what may be said, and how fair it is."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis import metrics, statistics
from analysis.runs import Found, Group, Run, short
from analysis.statistics import LEVEL
from attention.errors import UsageError, unknown

# What runs may be compared at, and how much of it a run has taken in all.
BUDGETS: Mapping[str, Callable[[Run], float]] = {
    "examples": lambda run: run.examples,
    "seconds": lambda run: run.seconds,
    "flops": lambda run: run.flops,
}
# What may be equal between runs, and how close it must be; clocks are noisy.
FAIRNESS: Mapping[str, tuple[Callable[[Run], float], float]] = {
    "training examples": (BUDGETS["examples"], 0.01),
    "parameters": (lambda run: run.value("parameters"), 0.01),
    "FLOPs": (BUDGETS["flops"], 0.01),
    "training time": (BUDGETS["seconds"], 0.05),
}
# A metric of a run; NaN where the run has none.
Measure = Callable[[Run, str], float]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What groups are compared with: the group that has `value` in `field` and is as they are in all other keys.

    Attributes:
      field: A key.
      value: One of its values.
    """

    field: str
    value: object

    @property
    def names(self) -> tuple[str, ...]:
        """What a user may write for it."""
        return str(self.value), f"{self.field}={self.value}", f"{self.field.rpartition('.')[2]}={self.value}"

    def pairs(self, found: Found) -> list[tuple[Group, Group]]:
        """Every group that has a baseline, with it."""
        return [(each, other) for each in found.groups if (other := self.of(each, found))]

    def of(self, group: Group, found: Found) -> Group | None:
        """The baseline of a group; none where it has none or is one itself."""
        wanted = {key: group.settings[key] for key in found.keys} | {self.field: self.value}
        same = (each for each in found.groups if all(each.settings[key] == wanted[key] for key in found.keys))
        return next((each for each in same if each is not group), None)

    def block(self, group: Group, found: Found) -> tuple[object, ...]:
        """What a group has in common with those that it is ranked with."""
        return tuple(group.settings[key] for key in found.keys if key != self.field)


@dataclasses.dataclass(frozen=True)
class GroupComparison:
    """Of a group with its baseline, in one metric.

    Attributes:
      group: The group.
      baseline: Its baseline.
      metric: A name of `analysis.metrics`.
      seeds: How many are compared: pairs, or of the group and of the baseline.
      difference: The group's less the baseline's.
      p: Corrected for all comparisons of the table; NaN where there is no test.
      wilcoxon: p-value of Wilcoxon's signed-rank test, corrected likewise; NaN where it cannot reach the level.
    """

    group: Group
    baseline: Group
    metric: str
    seeds: tuple[int, ...]
    difference: statistics.Difference
    p: float = np.nan
    wilcoxon: float = np.nan

    @property
    def sentence(self) -> str:
        """What may be said."""
        metric, mean = metrics.find(self.metric), float(self.difference.mean)
        claimed = self.p <= LEVEL
        width = f" ± {metric.text(float(self.difference.half_width))}" if min(self.seeds) > 1 else ""
        amount = metric.with_unit(metric.text(abs(mean) if claimed else mean, "" if claimed else "+") + width)
        seeds = " and ".join(map(str, self.seeds)) + (" seed" if self.seeds == (1,) else " seeds")
        seeds += ", unpaired" if len(self.seeds) > 1 else ""
        if claimed:
            better = (mean < 0) == metric.lower
            return f"{'better' if better else 'worse'} by {amount}, {seeds}, {p_text(self.p)}"
        return f"no difference can be claimed ({amount}, {seeds}, {self._why_not()})"

    def _why_not(self) -> str:
        if np.isnan(self.difference.mean):
            return "not measured in all runs"
        if min(self.seeds) < 2:
            return "a spread needs two seeds"
        return "all seeds differ alike, so there is no spread" if np.isnan(self.p) else p_text(self.p)


def p_text(p: float) -> str:
    """A p-value as it stands in a sentence."""
    digits = 2
    while float(f"{p:.{digits}g}") == LEVEL != p:  # or it would read as on the other side
        digits += 1
    return "p < 0.001" if p < 0.001 else f"p = {p:.{digits}g}"


def baseline(found: Found, wanted: str) -> Baseline | None:
    """Which value of which key the others are compared with.

    Args:
      found: The groups.
      wanted: A value, such as `dot_product`, or `FIELD=VALUE`, the field in full or its last part; '' is
        `dot_product` where it can be compared with, else the first that can be.

    Returns:
      None where no two groups differ in one key alone.

    Raises:
      UsageError: no group has that value, it is one of several fields, or nothing can be compared with it.
    """
    values = list(dict.fromkeys(Baseline(key, each.settings[key]) for key in found.keys for each in found.groups))
    if not wanted:
        values.sort(key=lambda each: each.value != "dot_product")
        return next((each for each in values if each.pairs(found)), None)
    matching = [each for each in values if wanted in each.names]
    if not matching:
        raise unknown("baseline", wanted, {str(each.value) for each in values})
    if len(matching) > 1:
        raise UsageError(
            f"--baseline={wanted} is a value of {' and of '.join(each.field for each in matching)}; "
            f"write --baseline={matching[0].field}={wanted}."
        )
    if not matching[0].pairs(found):
        raise UsageError(
            f"No setting is like one of --baseline={wanted} in all but {matching[0].field}; choose another baseline, "
            "or give none."
        )
    return matching[0]


def compare(found: Found, against: Baseline, names: Sequence[str], measure: Measure) -> list[GroupComparison]:
    """Every group that has a baseline with it, in every metric, corrected for all of these comparisons.

    Args:
      found: The groups.
      against: Their baseline.
      names: Of metrics.
      measure: What a run has of a metric.
    """
    raw = [_compare(each, other, name, measure) for name in names for each, other in against.pairs(found)]
    p = np.array([float(comparison.difference.p) for comparison in raw])
    ranked = np.array([_within_reach(comparison, np.sum(~np.isnan(p))) for comparison in raw])
    corrected = zip(raw, statistics.holm(p).tolist(), statistics.holm(ranked).tolist(), strict=True)
    return [dataclasses.replace(comparison, p=p, wilcoxon=wilcoxon) for comparison, p, wilcoxon in corrected]


def at_budget(found: Found, kind: str) -> tuple[float, Measure]:
    """What the first run to finish had spent, and the validation curves there.

    Args:
      found: The groups.
      kind: Of `BUDGETS`.

    Returns:
      The budget, and a measure: between two evaluations it is on the line between them.

    Raises:
      UsageError: an unknown kind, or a run that has not been evaluated by then.
    """
    if kind not in BUDGETS:
        raise unknown("--at", kind, BUDGETS)
    spent, runs = BUDGETS[kind], [run for each in found.groups for run in each.runs]
    budget = min(map(spent, runs))

    def measure(run: Run, metric: str) -> float:
        curve = run.curve(metric)
        if not curve:
            return np.nan
        a_step = spent(run) / run.result["steps"]
        where = [seconds if kind == "seconds" else step * a_step for step, seconds, _ in curve]
        if where[0] > budget:
            raise UsageError(
                f"{run.path} was not evaluated before the first run had finished; give all runs a shorter "
                "train.eval_every, or compare them without --at."
            )
        return float(np.interp(budget, where, [value for *_, value in curve]))

    return budget, measure


def fairness(found: Found, against: Baseline, subject: str) -> str:
    """What is equal between the groups and their baselines, of which there are some, and how far apart the rest is.

    Args:
      found: The groups.
      against: What they are compared with.
      subject: Of the sentence; it goes on with `equal`.
    """
    equal, unequal = [], []
    for what, (of, tolerance) in FAIRNESS.items():
        ratios = [_mean(each, of) / _mean(other, of) for each, other in against.pairs(found)]
        if max(abs(ratio - 1) for ratio in ratios) <= tolerance:
            equal.append(what)
        else:
            extremes = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
            unequal.append(f"{what} ({' to '.join(extremes)} times the baseline's)")
    said = f"{subject} equal {_and(equal)}." if equal else "Nothing is equal in these comparisons."
    return said + (f" Not equal: {_and(unequal)}." if unequal else "")


def text_of(against: Baseline) -> str:
    """The baseline in a heading."""
    return f"`{against.value}`" if against.field == "model.attention" else f"{short(against.field)} {against.value}"


def wilcoxon_text(comparisons: Sequence[GroupComparison]) -> str:
    """Whether Wilcoxon's test can reach the level with so many pairs and comparisons; '' where nothing is paired."""
    tested = [c for c in comparisons if len(c.seeds) == 1 and not np.isnan(c.p)]
    if not tested:
        return ""
    pairs = max(c.seeds[0] for c in tested)
    least = statistics.least_wilcoxon(pairs) * len(tested)
    if least <= LEVEL:
        return f"Wilcoxon's signed-rank test, which assumes no distribution, is given where it can reach {LEVEL}."
    times = f", times {len(tested)} comparisons" if len(tested) > 1 else ""
    return (
        f"Wilcoxon's signed-rank test is not given: of {pairs} pairs its p-value is at least "
        f"{statistics.least_wilcoxon(pairs):.3g}{times}, so it could never reach {LEVEL}."
    )


def _compare(each: Group, other: Group, name: str, measure: Measure) -> GroupComparison:
    """By seed where at least two seeds are of both, else by Welch's test; not corrected yet."""
    ours, theirs = ({run.seed: measure(run, name) for run in group.runs} for group in (each, other))
    common = [seed for seed in ours if seed in theirs]
    if len(common) < 2 and set(ours) != set(theirs):
        values, against = (np.array(list(values.values())) for values in (ours, theirs))
        return GroupComparison(each, other, name, (len(values), len(against)), statistics.unpaired(values, against))
    values, against = (np.array([values[seed] for seed in common]) for values in (ours, theirs))
    difference = statistics.paired(values, against)
    return GroupComparison(
        each, other, name, (len(common),), difference, float(difference.p), statistics.wilcoxon(values, against)
    )


def _within_reach(comparison: GroupComparison, comparisons: int) -> float:
    """Wilcoxon's p-value; NaN where even the least that so many pairs can give would not survive the correction."""
    paired = len(comparison.seeds) == 1 and not np.isnan(comparison.difference.p)
    reach = paired and statistics.least_wilcoxon(comparison.seeds[0]) * comparisons <= LEVEL
    return comparison.wilcoxon if reach else np.nan


def origins(found: Found) -> str:
    """What the runs were not all made with alike, such as code and packages, and what there is; '' where all are."""
    results = [run.result for each in found.groups for run in each.runs]
    fields = {"code": "git", "devices": "devices", "precision of products": "matmul_precision"}
    made = [{what: r.get(name) for what, name in fields.items()} | r.get("versions", {}) for r in results]
    values = {what: sorted({str(each[what]) for each in made if each.get(what)}) for what in made[0]}
    different = [f"{what} ({', '.join(each)})" for what, each in values.items() if len(each) > 1]
    return _and(different) if different else ""


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _mean(group: Group, of: Callable[[Run], float]) -> float:
    return float(np.mean([of(run) for run in group.runs]))
