"""Statistics of runs that differ in the seed: pure functions of arrays whose last axis is the seed.

Leading axes are kept, so one call serves one comparison or thousands. What cannot be computed is NaN, such as the
spread of one seed, or the p-value of differences that are all equal.
"""

import dataclasses

import numpy as np
from jaxtyping import Float
from scipy import special, stats

LEVEL = 0.05  # significance level of all claims of a table together; intervals have confidence 1 - LEVEL
ROUNDING = 1e-12  # a smaller spread, as a fraction of the values, is rounding error

Values = Float[np.ndarray, "*batch seeds"]
Statistic = Float[np.ndarray, "*batch"]


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of a setting over its seeds.

    Attributes:
      mean: Mean over seeds.
      half_width: Half the t confidence interval of the mean.
    """

    mean: Statistic
    half_width: Statistic


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference between a setting and its baseline.

    Attributes:
      mean: Mean of the values minus the baseline's.
      half_width: Half its t confidence interval, not corrected for other comparisons.
      p: Two-sided p-value, not corrected for other comparisons; see `holm`.
      effect: The mean in standard deviations with Hedges' correction: d_z if seeds are paired, else g.
    """

    mean: Statistic
    half_width: Statistic
    p: Statistic
    effect: Statistic


def summary(values: Values) -> Summary:
    """Computes the mean and its confidence interval."""
    count = values.shape[-1]
    return Summary(values.mean(-1), _quantile(count - 1) * _spread(values) / np.sqrt(count))


def paired(values: Values, baseline: Values) -> Difference:
    """Computes the paired t-test of values that have the same seeds as the baseline, in the same order."""
    count = values.shape[-1]
    differences = values - baseline
    mean = differences.mean(-1)
    size = np.maximum(np.abs(values).max(-1), np.abs(baseline).max(-1))
    spread = _without_rounding(_spread(differences), size)
    error = spread / np.sqrt(count)
    return Difference(
        mean, _quantile(count - 1) * error, _p(mean, error, count - 1), hedges(count - 1) * _ratio(mean, spread)
    )


def unpaired(values: Values, baseline: Float[np.ndarray, "*batch others"]) -> Difference:
    """Computes Welch's t-test of values that have other seeds than the baseline.

    The unit of the effect is the square root of the mean variance.
    """
    mean = values.mean(-1) - baseline.mean(-1)
    counts = np.array([values.shape[-1], baseline.shape[-1]], float)
    size = np.maximum(np.abs(values).max(-1), np.abs(baseline).max(-1))
    variances = np.stack(
        [_without_rounding(_spread(seeds_of_one), size) ** 2 for seeds_of_one in (values, baseline)], -1
    )
    errors_squared = variances / counts
    error = np.sqrt(errors_squared.sum(-1))
    freedom = _ratio(errors_squared.sum(-1) ** 2, (errors_squared**2 / np.maximum(counts - 1, 1)).sum(-1))
    effect = hedges(counts.sum() - 2) * _ratio(mean, np.sqrt(variances.mean(-1)))
    return Difference(mean, _quantile(freedom) * error, _p(mean, error, freedom), effect)


def holm(p: Float[np.ndarray, "*batch comparisons"]) -> Float[np.ndarray, "*batch comparisons"]:
    """Corrects p-values for all comparisons along the last axis (Holm 1979); NaN does not count and stays NaN."""
    order = np.argsort(p, -1)  # NaN comes last
    tested = np.sum(~np.isnan(p), -1, keepdims=True)
    factors = tested - np.arange(p.shape[-1])
    stepped = np.maximum.accumulate(np.take_along_axis(p, order, -1) * factors, -1)
    corrected = np.empty_like(p)
    np.put_along_axis(corrected, order, np.minimum(stepped, 1.0), -1)
    return corrected


def hedges(freedom: float) -> float:
    """Computes the factor that unbiases a standardised difference: Γ(m/2) / (√(m/2) Γ((m−1)/2)); NaN below m = 2."""
    if freedom < 2:
        return np.nan
    half = freedom / 2
    return float(np.exp(special.gammaln(half) - special.gammaln(half - 0.5)) / np.sqrt(half))


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Computes the ends of Wilson's 95 % interval of a share, which has a width even if all trials agree."""
    found = stats.binomtest(successes, trials).proportion_ci(1 - LEVEL, method="wilson")
    return float(found.low), float(found.high)


def least_wilcoxon(pairs: int) -> float:
    """Computes the smallest two-sided p-value of Wilcoxon's signed-rank test, if all pairs differ in one direction."""
    return 2.0 ** (1 - pairs)


def wilcoxon(values: Float[np.ndarray, "seeds"], baseline: Float[np.ndarray, "seeds"]) -> float:
    """Computes the two-sided p-value of Wilcoxon's signed-rank test, leaving out pairs that do not differ."""
    differences = (values - baseline)[values != baseline]
    return float(stats.wilcoxon(differences).pvalue) if len(differences) else np.nan


def _spread(values: Values) -> Statistic:
    return values.std(-1, ddof=1) if values.shape[-1] > 1 else np.full(values.shape[:-1], np.nan)


def _without_rounding(spread: Statistic, size: Statistic) -> Statistic:
    """Sets a spread that is rounding error to 0."""
    return np.where(spread <= ROUNDING * size, 0.0, spread)


def _quantile(freedom: Statistic | int) -> Statistic:
    """Computes the quantile of Student's t for two-sided intervals; NaN without a degree of freedom."""
    return stats.t.ppf(1 - LEVEL / 2, np.where(np.asarray(freedom) > 0, freedom, np.nan))


def _p(mean: Statistic, error: Statistic, freedom: Statistic | int) -> Statistic:
    return 2 * stats.t.sf(np.abs(_ratio(mean, error)), freedom)


def _ratio(above: Statistic, below: Statistic) -> Statistic:
    """Divides; gives NaN if the divisor is 0."""
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=np.asarray(below) > 0)
