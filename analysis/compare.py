"""Comparisons of groups of runs with a baseline: tests, conclusions, and fairness."""

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis import metrics, statistics
from analysis.runs import Found, Group, Run, short
from analysis.statistics import LEVEL
from attention.errors import UsageError, check_known, unknown

BUDGETS = ("examples", "seconds", "flops")  # attributes of `Run` at which runs may be compared
# What may be equal between runs, and the tolerance that still counts as equal; clocks are noisy.
FAIRNESS: Mapping[str, tuple[Callable[[Run], float], float]] = {
    "training examples": (lambda run: run.examples, 0.01),
    "parameters": (lambda run: run.value("parameters"), 0.01),
    "FLOPs": (lambda run: run.flops, 0.01),
    "training time": (lambda run: run.seconds, 0.05),
}
LISTED = 4  # settings without a claim that a sentence names; more are only counted
Measure = Callable[[Run, str], float]  # reads a metric from a run; NaN if the run does not have it


@dataclasses.dataclass(frozen=True)
class Baseline:
    """A baseline: the group that has this value of this field, and equals the compared group in all other keys."""

    field: str
    value: object

    @property
    def names(self) -> tuple[str, ...]:
        """The ways to name this baseline on a command line."""
        return str(self.value), f"{self.field}={self.value}", f"{self.field.rpartition('.')[2]}={self.value}"

    def pairs(self, found: Found) -> list[tuple[Group, Group]]:
        """Pairs each group that has a baseline with its baseline."""
        return [(group, baseline) for group in found.groups if (baseline := self.of(group, found))]

    def of(self, group: Group, found: Found) -> Group | None:
        """Finds a group's baseline; None if it has none or is one itself."""
        settings = {key: group.settings[key] for key in found.keys} | {self.field: self.value}
        same = (other for other in found.groups if all(other.settings[key] == settings[key] for key in found.keys))
        return next((other for other in same if other is not group), None)

    def block(self, group: Group, found: Found) -> tuple[object, ...]:
        """Lists the settings that a group shares with those that it is ranked among."""
        return tuple(group.settings[key] for key in found.keys if key != self.field)


@dataclasses.dataclass(frozen=True)
class GroupComparison:
    """The comparison of a group with its baseline in one metric.

    Attributes:
      metric: A name of `analysis.metrics`.
      seeds: The number of pairs of seeds, or the numbers of seeds of the group and of the baseline.
      difference: The group's value minus the baseline's.
      p: p-value, corrected for all comparisons of the table; NaN without a test.
      wilcoxon: p-value of Wilcoxon's signed-rank test, corrected likewise; NaN if it cannot reach the level.
    """

    group: Group
    baseline: Group
    metric: str
    seeds: tuple[int, ...]
    difference: statistics.Difference
    p: float = np.nan
    wilcoxon: float = np.nan

    @property
    def claim(self) -> str:
        """`better` or `worse` if the test allows the claim, else ''."""
        mean = float(self.difference.mean)
        return ("better" if (mean < 0) == metrics.find(self.metric).lower else "worse") if self.p <= LEVEL else ""

    @property
    def amount(self) -> str:
        """The difference with its interval and unit, signed if no direction is claimed."""
        metric, mean = metrics.find(self.metric), float(self.difference.mean)
        width = f" ± {metric.text(float(self.difference.half_width))}" if min(self.seeds) > 1 else ""
        return metric.with_unit((metric.text(abs(mean)) if self.claim else metric.text(mean, "+")) + width)

    @property
    def basis(self) -> str:
        """The seeds, and the p-value or why there is none."""
        seeds = " and ".join(map(str, self.seeds)) + (" seed" if self.seeds == (1,) else " seeds")
        seeds += ", unpaired" * (len(self.seeds) > 1)
        return f"{seeds}, {metrics.P.phrase(self.p) if self.claim else self._why_not()}"

    @property
    def sentence(self) -> str:
        """The conclusion that the test allows."""
        if self.claim:
            return f"{self.claim} by {self.amount}, {self.basis}"
        return f"no difference can be claimed ({self.amount}, {self.basis})"

    def _why_not(self) -> str:
        if np.isnan(self.difference.mean):
            return "not measured in all runs"
        if min(self.seeds) < 2:
            return "a spread needs two seeds"
        return "all seeds differ alike, so there is no spread" if np.isnan(self.p) else metrics.P.phrase(self.p)


def verdict(comparisons: Sequence[GroupComparison]) -> list[str]:
    """Writes the conclusions of each metric: a sentence for each claim, and one for all other comparisons."""
    said = []
    for metric in dict.fromkeys(compared.metric for compared in comparisons):
        of_metric = [compared for compared in comparisons if compared.metric == metric]
        title = metrics.find(metric).title.partition(",")[0]
        name = title[0].upper() + title[1:]
        said += [
            f"{name}: {c.group.label} is {c.claim} than {c.baseline.label} by {c.amount} ({c.basis})."
            for c in of_metric
            if c.claim
        ]
        if unclaimed := [compared for compared in of_metric if not compared.claim]:
            said.append(f"{name}: {_unclaimed(unclaimed)}")
    if comparisons and all(min(compared.seeds) < 2 for compared in comparisons):
        said.append("One seed shows nothing, since another one may reverse the order: train more, such as --seeds=3.")
    return said


def claim_of(sentence: str) -> str:
    """Finds `better` or `worse` in a sentence of `verdict`; '' if it claims neither."""
    return next((claim for claim in ("better", "worse") if f" is {claim} than " in sentence), "")


def _unclaimed(comparisons: Sequence[GroupComparison]) -> str:
    baselines = list(dict.fromkeys(compared.baseline.label for compared in comparisons))
    baseline = baselines[0] if len(baselines) == 1 else "their baselines"
    amounts = [c.basis if np.isnan(c.difference.mean) else c.amount for c in comparisons]
    settings = _and([f"{c.group.label} ({amount})" for c, amount in zip(comparisons, amounts, strict=True)])
    if len(comparisons) > LISTED:
        settings = f"{len(comparisons)} settings; the table has their differences"
    return f"no difference from {baseline} can be claimed for {settings}."


def baseline(found: Found, wanted: str) -> Baseline | None:
    """Chooses the baseline of a comparison.

    Args:
      wanted: A value, such as `dot_product`, or `FIELD=VALUE` with the whole field or its last part; '' takes
        `dot_product` if possible, else the first value that some group can be compared with.

    Returns:
      The baseline, or None if no two groups differ in one key alone.

    Raises:
      UsageError: No group has that value, several fields have it, or nothing can be compared with it.
    """
    values = list(dict.fromkeys(Baseline(key, group.settings[key]) for key in found.keys for group in found.groups))
    if not wanted:
        values.sort(key=lambda candidate: candidate.value != "dot_product")
        return next((candidate for candidate in values if candidate.pairs(found)), None)
    matching = [candidate for candidate in values if wanted in candidate.names]
    if not matching:
        raise unknown("baseline", wanted, {str(candidate.value) for candidate in values})
    if len(matching) > 1:
        raise UsageError(
            f"--baseline={wanted} is a value of {' and of '.join(candidate.field for candidate in matching)}; "
            f"write --baseline={matching[0].field}={wanted}."
        )
    if not matching[0].pairs(found):
        raise UsageError(
            f"No setting is like one of --baseline={wanted} in all but {matching[0].field}; choose another baseline, "
            "or give none."
        )
    return matching[0]


def compare(found: Found, against: Baseline, names: Sequence[str], measure: Measure) -> list[GroupComparison]:
    """Compares each group that has a baseline with it, in each metric, and corrects for all of these comparisons."""
    raw = [_compare(group, baseline, name, measure) for name in names for group, baseline in against.pairs(found)]
    p = np.array([float(comparison.difference.p) for comparison in raw])
    ranked = np.array([_within_reach(comparison, np.sum(~np.isnan(p))) for comparison in raw])
    corrected = zip(raw, statistics.holm(p).tolist(), statistics.holm(ranked).tolist(), strict=True)
    return [dataclasses.replace(comparison, p=p, wilcoxon=wilcoxon) for comparison, p, wilcoxon in corrected]


def at_budget(found: Found, kind: str) -> tuple[float, Measure]:
    """Finds the smallest budget that a run has spent, and a measure of validation curves at this budget.

    Args:
      kind: One of `BUDGETS`.

    Returns:
      The budget and the measure, which interpolates linearly between two evaluations.

    Raises:
      UsageError: The kind is unknown, or a run was not evaluated by then or does not record what it spent.
    """
    check_known("--at", kind, BUDGETS)
    spent, runs = operator.attrgetter(kind), [run for group in found.groups for run in group.runs]
    for run in runs:
        if not np.isfinite(spent(run)):
            raise UsageError(f"{run.path} does not say its {kind}; leave it out, or compare without --at={kind}.")
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


def fairness(found: Found, against: Baseline, subject: str, clocks: bool = True) -> str:
    """Describes what is equal between groups and their baselines, and how far apart the rest is, in the median run.

    Args:
      against: A baseline that at least one group has.
      subject: The beginning of the first sentence, which continues with `equal`.
      clocks: Whether to compare times of training.
    """
    equal, unequal = [], []
    for what, (of, tolerance) in FAIRNESS.items():
        if what == "training time" and not clocks:
            continue
        ratios = [_ratio(_median(group, of), _median(baseline, of)) for group, baseline in against.pairs(found)]
        if not np.isfinite(ratios).all():  # runs of one step have taken no time, and older ones do not say their FLOPs
            continue
        if max(abs(ratio - 1) for ratio in ratios) <= tolerance:
            equal.append(what)
        else:
            extremes = dict.fromkeys(f"{ratio:.2f}" for ratio in (min(ratios), max(ratios)))
            unequal.append(f"{what} ({' to '.join(extremes)} times the baseline's)")
    said = ((f"{subject} equal", equal), ("Not equal:", unequal))
    return " ".join(f"{start} {_and(what)}." for start, what in said if what)


def text_of(against: Baseline) -> str:
    """Names a baseline as a heading does."""
    return f"`{against.value}`" if against.field == "model.attention" else f"{short(against.field)} {against.value}"


def wilcoxon_text(comparisons: Sequence[GroupComparison]) -> str:
    """Explains why Wilcoxon's test is or is not given; '' if no comparison is paired."""
    tested = [c for c in comparisons if len(c.seeds) == 1 and not np.isnan(c.p)]
    if not tested:
        return ""
    pairs = max(c.seeds[0] for c in tested)
    least = statistics.least_wilcoxon(pairs) * len(tested)
    if least <= LEVEL:
        return f"Wilcoxon's signed-rank test, which assumes no distribution, is given where it can reach {LEVEL}."
    times = f", times {len(tested)} comparisons" if len(tested) > 1 else ""
    return (
        f"Wilcoxon's signed-rank test is not given: with {pairs} pairs its p-value is at least "
        f"{statistics.least_wilcoxon(pairs):.3g}{times}, so it could never reach {LEVEL}."
    )


def _compare(compared: Group, baseline: Group, name: str, measure: Measure) -> GroupComparison:
    """Compares seed by seed if the groups share at least two seeds, else by Welch's test, without correction."""
    ours, theirs = ({run.seed: measure(run, name) for run in group.runs} for group in (compared, baseline))
    common = [seed for seed in ours if seed in theirs]
    paired = len(common) >= 2 or set(ours) == set(theirs)
    values, against = (
        np.array([of_seed[seed] for seed in (common if paired else of_seed)]) for of_seed in (ours, theirs)
    )
    if not paired:
        counts = len(values), len(against)
        return GroupComparison(compared, baseline, name, counts, statistics.unpaired(values, against))
    difference, wilcoxon = statistics.paired(values, against), statistics.wilcoxon(values, against)
    return GroupComparison(compared, baseline, name, (len(common),), difference, wilcoxon=wilcoxon)


def _within_reach(comparison: GroupComparison, comparisons: int) -> float:
    """Takes Wilcoxon's p-value, or NaN if even the least possible one would not survive the correction."""
    paired = len(comparison.seeds) == 1 and not np.isnan(comparison.difference.p)
    reach = paired and statistics.least_wilcoxon(comparison.seeds[0]) * comparisons <= LEVEL
    return comparison.wilcoxon if reach else np.nan


def origins(found: Found) -> str:
    """Lists how the runs' code, packages, devices and precision differ; '' if they do not."""
    results = [run.result for group in found.groups for run in group.runs]
    fields = {"code": "git", "devices": "devices", "precision of products": "matmul_precision"}
    origins_of_runs = [{what: r.get(name) for what, name in fields.items()} | r.get("versions", {}) for r in results]
    values = {what: sorted({str(o[what]) for o in origins_of_runs if o.get(what)}) for what in origins_of_runs[0]}
    different = [f"{what} ({', '.join(texts)})" for what, texts in values.items() if len(texts) > 1]
    return _and(different) if different else ""


def _and(texts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def _ratio(above: float, below: float) -> float:
    return above / below if below else np.nan


def _median(group: Group, of: Callable[[Run], float]) -> float:
    return float(np.median([of(run) for run in group.runs]))
