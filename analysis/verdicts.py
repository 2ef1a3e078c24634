"""Verdicts by rule on the comparisons that a sweep declared before anything was trained.

A comparison measures a gain: how much better its settings are than their baselines, or how much worse if that is
claimed. The gain is the mean over blocks, such as numbers of heads, seed by seed. Its interval over seeds decides:

- *holds*: the interval lies on the claim's side of the margin.
- *equal within m*: two one-sided tests find the gain within the margin.
- *does not hold*: the interval excludes the claimed effect, or the margin if no effect is given. A claim that settings
  are equal does not hold if the interval lies outside the margin.
- `no worse` and `as much` have one limit each: they hold if the interval lies above it, and do not hold if it lies
  below. `no worse` allows a loss of the margin; `as much` asks for a gain that exceeds the margin and falls short of
  the claimed effect by no more than the margin.
- *better* and *worse*: nothing is claimed, and the interval lies outside the margin on this side.
- *undecided*: none of these.
- *not tested*: fewer than two seeds have all the runs, or all of them differ alike.

Levels within a family are those of Holm's method. If two verdicts are possible, the first in this list is given.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy import optimize, stats

from analysis import metrics, statistics
from analysis.metrics import Metric
from analysis.runs import Found, Run
from analysis.statistics import LEVEL, ROUNDING
from analysis.tables import Number, ResultColumn, ResultTable
from train.grids import declaration
from train.grids.declaration import Comparison, Declaration

HOLDS, DOES_NOT, UNDECIDED, NOT_TESTED = "holds", "does not hold", "undecided", "not tested"
BETTER, WORSE = "better", "worse"
ONE_SIDED = ("no worse", "as much")
POWER = 0.8  # probability with which the smallest effect is found
SIZE = Metric("effect size")
NOTHING = statistics.Summary(np.array(np.nan), np.array(np.nan))
Differences = Float[np.ndarray, " seeds"]
TITLES = ("comparison", "claim", "seeds", "difference", "effect size", "verdict", "finds")


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict on a comparison.

    Attributes:
      comparison: The declared comparison.
      words: The verdict, in the words of the module's docstring.
      differences: The settings' metric minus the baselines', for each seed.
      detects: The smallest difference that would be found in 80 % of cases; NaN if nothing is tested.
    """

    comparison: Comparison
    words: str
    differences: Differences
    detects: float

    def number(self, metric: Metric) -> Number:
        """Makes the mean difference ± half its 95 % interval, not corrected for other comparisons."""
        summary = statistics.summary(self.differences) if len(self.differences) else NOTHING
        return Number(float(summary.mean), metric, float(summary.half_width), sign="+")

    @property
    def size(self) -> float:
        """The mean in standard deviations of the differences, with Hedges' correction; NaN if nothing is tested."""
        if self.words == NOT_TESTED:
            return np.nan
        return float(statistics.paired(self.differences, np.zeros(len(self.differences))).effect)


def judge(found: Found, declared: Declaration, split: str = "test") -> list[Verdict]:
    """Judges each comparison of a declared family.

    Args:
      found: The runs of the sweep that declared the family.
      declared: The declaration.
      split: `test` or `validation` at the best step, or `train` in the last whole epoch up to it.
    """
    differences = [_differences(found, row, lambda run: run.value(declared.metric, split)) for row in declared.family]
    return judge_differences(differences, declared)


def judge_curve(found: Found, declared: Declaration, comparison: Comparison) -> str:
    """Judges a comparison by all evaluations on validation data, which form a family.

    The claim holds if it holds at every evaluation, and does not hold if it does not hold at some evaluation, whose
    interval then excludes the margin. The claimed effect, which is about the end of training, plays no part.
    """
    comparison = dataclasses.replace(comparison, effect=0.0)
    curves = [[value for *_, value in run.curve(declared.metric)] for run in _runs(found)]
    count = min(map(len, curves), default=0)
    values = [lambda run, i=i: run.curve(declared.metric)[i][2] for i in range(count)]
    differences = [_differences(found, comparison, value) for value in values]
    family = dataclasses.replace(declared, family=[comparison] * count)
    words = {verdict.words for verdict in judge_differences(differences, family)}
    return next(iter(words)) if len(words) == 1 else DOES_NOT if DOES_NOT in words else UNDECIDED


def judge_differences(differences: Sequence[Differences], declared: Declaration) -> list[Verdict]:
    """Judges a declared family by the differences of each comparison, seed by seed; without any it is *not tested*."""
    family, metric = declared.family, metrics.find(declared.metric)
    said = [
        _p_values(values, comparison, declared.margin, metric)
        for values, comparison in zip(differences, family, strict=True)
    ]
    least = np.array([min(p_of.values(), default=np.nan) for p_of in said])
    factors = np.divide(statistics.holm(least), least, out=np.ones_like(least), where=least > 0)
    words = [
        next((verdict for verdict, p in p_of.items() if p * factor <= LEVEL), UNDECIDED if p_of else NOT_TESTED)
        for p_of, factor in zip(said, factors, strict=True)
    ]
    level = LEVEL / max(len(family), 1)
    detects = [detectable(values, level) if p_of else np.nan for values, p_of in zip(differences, said, strict=True)]
    return [Verdict(*row) for row in zip(family, words, differences, detects, strict=True)]


def detectable(differences: Differences, level: float = LEVEL) -> float:
    """Computes the smallest mean that a two-sided t-test at this level finds in 80 % of cases, given this spread."""
    freedom = len(differences) - 1
    critical = stats.t.ppf(1 - level / 2, freedom)
    shift = optimize.brentq(lambda shift: stats.nct.sf(critical, freedom, shift) - POWER, 0, 4 * critical + 10)
    return float(shift * stats.sem(differences))


def limit(comparison: Comparison, margin: float) -> float:
    """Computes the gain above which a one-sided claim holds."""
    return max(margin, comparison.effect - margin) if comparison.claim == "as much" else -margin


def of_sweep(found: Found) -> ResultTable:
    """Judges what the runs' sweep declared, in a table; empty if it declared nothing or there are several sweeps."""
    plain = found.sweeps[0].get("declaration") if len(found.sweeps) == 1 else None
    if not plain:
        return ResultTable(())
    declared = declaration.parse(plain, "sweep.json")
    return table(judge(found, declared), metrics.find(declared.metric))


def table(verdicts: Sequence[Verdict], metric: Metric) -> ResultTable:
    """Writes a row for each verdict, with 95 % intervals."""
    titles = [f"difference in {metric.title}" if name == "difference" else name for name in TITLES]
    rows = [_cells(verdict, metric) for verdict in verdicts]
    return ResultTable(tuple(map(ResultColumn, TITLES, titles, zip(*rows, strict=True))))


def claimed(comparison: Comparison, metric: Metric) -> str:
    """Writes the claim of a comparison with its effect."""
    effect = f" by {metric.with_unit(metric.text(comparison.effect))}" if comparison.effect else ""
    return f"{comparison.claim}{effect}"


def _cells(verdict: Verdict, metric: Metric) -> tuple[Number | str, ...]:
    name, claim, seeds = verdict.comparison.name, claimed(verdict.comparison, metric), str(len(verdict.differences))
    size, finds = Number(verdict.size, SIZE, sign="+"), Number(verdict.detects, metric)
    return name, claim, seeds, verdict.number(metric), size, verdict.words, finds


def _runs(found: Found) -> list[Run]:
    return [run for group in found.groups for run in group.runs]


def _differences(found: Found, comparison: Comparison, value: Callable[[Run], float]) -> Differences:
    """Computes the mean difference over blocks for each seed that all settings and baselines have."""
    runs = _runs(found)
    cells = [
        {run.seed: value(run) for run in runs if run.path.parent.name == name}
        for name in (*comparison.settings, *comparison.baselines)
    ]
    seeds = sorted(set.intersection(*map(set, cells)))
    settings, baselines = np.split(np.array([[cell[seed] for seed in seeds] for cell in cells]), 2)
    return (settings - baselines).mean(axis=0)


def _p_values(differences: Differences, comparison: Comparison, margin: float, metric: Metric) -> dict[str, float]:
    """Computes the p-value of each possible verdict, in the order of preference; empty if nothing is tested."""
    if len(differences) < 2 or not differences.std() > ROUNDING * np.abs(differences).max():
        return {}
    gain = differences * (-1 if metric.lower else 1) * (-1 if comparison.claim == "worse" else 1)

    def above(value: float) -> float:
        return float(stats.ttest_1samp(gain, value, alternative="greater").pvalue)

    def below(value: float) -> float:
        return float(stats.ttest_1samp(gain, value, alternative="less").pvalue)

    equal = {f"equal within {metric.with_unit(metric.text(margin))}": max(above(-margin), below(margin))}
    if comparison.claim == "equal":
        return equal | {DOES_NOT: 2 * min(above(margin), below(-margin))}
    if not comparison.claim:
        return equal | {BETTER: 2 * above(margin), WORSE: 2 * below(-margin)}
    if comparison.claim in ONE_SIDED:
        least = limit(comparison, margin)
        return {HOLDS: 2 * above(least), DOES_NOT: 2 * below(least)}
    return {HOLDS: 2 * above(margin)} | equal | {DOES_NOT: 2 * below(comparison.effect or margin)}
