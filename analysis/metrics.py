"""All metrics: which direction is better, the unit, and how values are printed."""

import dataclasses
import math

from analysis.statistics import LEVEL
from attention.errors import check_known


@dataclasses.dataclass(frozen=True)
class Metric:
    """How a metric is compared and printed.

    Attributes:
      title: Name in headings.
      lower: Whether lower values are better.
      scale: Factor of printed values.
      digits: Number of digits printed after the decimal point.
      unit: Unit of printed differences.
      exact: Whether it is counted rather than measured, so that all seeds have the same value.
    """

    title: str
    lower: bool = False
    scale: float = 1.0
    digits: int = 2
    unit: str = ""
    exact: bool = False

    def text(self, value: float, sign: str = "") -> str:
        """Writes a value without its unit; `sign='+'` shows the sign of positive values."""
        return "–" if math.isnan(value) else f"{value * self.scale:{sign},.{self.digits}f}"

    def with_unit(self, text: str) -> str:
        """Adds the unit to a printed difference."""
        return f"{text} {self.unit}" if self.unit else text


class PValue(Metric):
    """A p-value, printed with enough digits to show on which side of the level it is."""

    def text(self, value: float, sign: str = "") -> str:
        """Writes a p-value for a table, such as `0.041` or `< 0.001`."""
        if math.isnan(value) or value < 0.001:
            return "–" if math.isnan(value) else "< 0.001"
        digits = 2
        while float(f"{value:.{digits}g}") == LEVEL != value:  # rounded, it would be on the other side of the level
            digits += 1
        return f"{value:.{digits}g}"

    def phrase(self, value: float) -> str:
        """Writes a p-value for a sentence, such as `p = 0.041` or `p < 0.001`."""
        text = self.text(value)
        return f"{self.title} {text}" if text[0] == "<" else f"{self.title} = {text}"


P = PValue("p", lower=True)


def _percentage(title: str) -> Metric:
    return Metric(f"{title}, %", scale=100.0, unit="points")


METRICS = {
    "accuracy": _percentage("accuracy"),
    "top5": _percentage("top-5 accuracy"),
    "bleu": Metric("BLEU", unit="BLEU"),
    "chrf": Metric("chrF", unit="chrF"),
    **{f"bleu_to_{n}": Metric(f"BLEU of the group up to {n} tokens", unit="BLEU") for n in (10, 14, 18, 48)},
    "exact_match": _percentage("exact matches"),
    "accuracy_with_padding": _percentage("accuracy with padding"),
    "loss": Metric("loss", lower=True, digits=4),
    "perplexity": Metric("perplexity", lower=True),
    "window_perplexity": Metric("perplexity of windows", lower=True),
    "bits_per_byte": Metric("bits per byte", lower=True, digits=4),
    "seconds_per_epoch": Metric("seconds per epoch", lower=True, unit="s"),
    "peak_memory_bytes": Metric("peak memory, MB", lower=True, scale=1e-6, digits=0, unit="MB"),
    "attention_layer_parameters": Metric("parameters of one attention layer", lower=True, digits=0, exact=True),
    "parameters": Metric("parameters", lower=True, digits=0, exact=True),
}
# Metrics of a whole run; all others are metrics of a split.
COSTS = ("attention_layer_parameters", "parameters", "seconds_per_epoch", "peak_memory_bytes")


def find(name: str) -> Metric:
    """Finds a metric by its name; raises a UsageError if there is none."""
    check_known("metric", name, METRICS)
    return METRICS[name]
