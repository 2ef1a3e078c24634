"""Reports on finished runs: tables of results and differences, and conclusions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from analysis import compare, metrics, statistics, tables, tuning, verdicts
from analysis.compare import Baseline, GroupComparison
from analysis.metrics import METRICS, Metric, P
from analysis.runs import Found, Run, short
from analysis.statistics import LEVEL
from analysis.tables import Number, ResultColumn, ResultTable
from attention.errors import in_line, listed, unknown
from train import tasks
from train.cli.files import write_text
from train.cli.terminal import counted
from train.run import doubts

EFFECT = Metric("effect")
UNCLAIMED = "not claimed"
ALONE = "Nothing is compared: there is one setting, or no two that differ in one field alone."
Figure = tuple[str, str, str, compare.Measure]  # a column's name, title and metric, and what reads it from a run


@dataclasses.dataclass(frozen=True)
class ComparisonReport:
    """A report on finished runs: its text and its tables.

    Attributes:
      found: The groups of runs.
      comparisons: The comparisons with the baseline.
      compared: The compared metrics, each with the name of its column in `results`.
      introduction: What was compared, and how fair the comparison is.
      results: A row for each group.
      declared: A row with a verdict for each comparison that the sweep declared, see `analysis.verdicts`.
      tuning: A row for each setting that was tuned, a column for each value that was tried.
      notes: How to read the tables, and what was left out.
    """

    found: Found
    comparisons: tuple[GroupComparison, ...]
    compared: Mapping[str, str]
    introduction: str
    results: ResultTable
    declared: ResultTable
    tuning: ResultTable
    notes: tuple[str, ...]

    @property
    def verdict(self) -> list[str]:
        """The conclusions as sentences: on declared comparisons, on the differences, and on what is in doubt."""
        declared = [
            f"Declared: {name}{claim and f' ({claim})'}: {said} ({difference}, {seeds} seeds)."
            for name, claim, seeds, difference, _, said, _ in self.declared.rows
        ]
        said = compare.verdict(self.comparisons) or [ALONE]
        return declared + said + list(dict.fromkeys(map(doubts.caution, self._doubts())))

    def _doubts(self) -> Iterator[str]:
        for group in self.found.groups:
            mean = {"accuracy": float(np.mean([run.value("accuracy") for run in group.runs]))}
            for run in group.runs:
                yield from doubts.of_sizes(run.result)
            yield from (f"{group.label}: {doubt}" for doubt in doubts.of_metrics(mean, group.runs[0].result))
        for column in self.results.columns:
            cells = zip(self.found.groups, column.numbers, strict=False)
            beyond = [group.label for group, cell in cells if cell.is_beyond]
            if beyond and column.name in self.compared.values():
                interval = f"The {1 - LEVEL:.0%} interval of the {column.title.partition(',')[0]}"
                whose = listed(beyond, compare.LISTED)
                yield f"{interval} reaches beyond 0 or 100 % for {whose}; more seeds make it narrower."

    @property
    def differences(self) -> ResultTable:
        """A row for each comparison."""
        return _differences(self.comparisons)

    @property
    def overview(self) -> ResultTable:
        """The results without ranks, the most important columns first, and differences beside compared metrics."""
        results = {column.name: column for column in self.results.columns}
        settings = [column for name, column in results.items() if name in self.found.groups[0].settings]
        measured = [(metric, results[name]) for metric, name in self.compared.items() if name in results]
        compared = [column for metric, values in measured for column in (values, *self._against(metric))]
        first = {column.name: column for column in (*settings, *compared, results["seeds"])}
        costs = {name: results[name] for name in ("seconds_per_epoch", "parameters") if name in results}
        return tables.without_ranks(ResultTable(tuple((first | costs | (results | first)).values())))

    def _against(self, metric: str) -> Iterator[ResultColumn]:
        """Yields columns of the difference from the baseline, its verdict and its p; none without a baseline."""
        baselines = {c.baseline.label for c in self.comparisons}
        of_group = {c.group.label: c for c in self.comparisons if c.metric == metric}
        if of_group:
            rows = [of_group.get(group.label) for group in self.found.groups]
            nothing = Number(math.nan, METRICS[metric])
            yield ResultColumn(
                f"{metric}_difference", "difference", tuple(_difference(c) if c else nothing for c in rows)
            )
            words = (
                compared.claim or UNCLAIMED if compared else "baseline" * (group.label in baselines)
                for compared, group in zip(rows, self.found.groups, strict=True)
            )
            yield ResultColumn(f"{metric}_verdict", "verdict", tuple(words))
            yield ResultColumn(f"{metric}_p", "p", tuple(Number(c.p if c else math.nan, P) for c in rows))

    def markdown(self) -> str:
        """Writes the report as a Markdown page."""
        verdict = "\n".join(f"- {sentence}" for sentence in self.verdict)
        sections = ["# Comparison", verdict, self.introduction, tables.markdown(self.results).strip()]
        if self.differences.rows:
            sections += ["## Differences", tables.markdown(self.differences).strip()]
        if self.declared.columns:
            sections += ["## Declared comparisons", tables.markdown(self.declared).strip()]
        if self.tuning.columns:
            sections += ["## Tuning", tables.markdown(self.tuning).strip()]
        return "\n\n".join([*sections, "## Notes", "\n".join(f"- {note}" for note in self.notes)]) + "\n"

    _repr_markdown_ = markdown  # for notebooks

    def write(self, out: Path) -> list[Path]:
        """Writes `report.md`, `report.tex` with all tables, and a CSV file of each table that has rows.

        The CSV files are `report.csv`, `differences.csv`, `declared.csv` and `tuning.csv`.

        Returns:
          The files.
        """
        out.mkdir(parents=True, exist_ok=True)
        more = {"differences": self.differences, "declared": self.declared, "tuning": self.tuning}
        filled = {"report": self.results} | {name: table for name, table in more.items() if table.rows}
        texts = {"report.md": self.markdown(), "report.tex": "\n".join(map(tables.latex, filled.values()))}
        texts |= {f"{name}.csv": tables.comma_separated(table) for name, table in filled.items()}
        for name, text in texts.items():
            write_text(out / name, text)
        return [out / name for name in texts]


def report(
    found: Found, wanted: str = "", names: Sequence[str] = (), at: str = "", clocks: bool = True
) -> ComparisonReport:
    """Makes the report on some groups of runs.

    Args:
      found: At least one group.
      wanted: See `compare.baseline`.
      names: Metrics to compare; by default the metric by which the task chooses its best step.
      at: A budget at which validation curves are compared, see `compare.at_budget`; '' compares test data at the best
        step.
      clocks: Whether to compare times of training, which say nothing of runs that shared their machine.

    Raises:
      UsageError: The baseline, a metric or the budget does not exist.
    """
    names = names or default_metrics(found)
    budget, measure = compare.at_budget(found, at) if at else (math.nan, Run.value)
    for name in names:
        _check_measured(found, name, measure)
    against = compare.baseline(found, wanted)
    comparisons = compare.compare(found, against, names, measure) if against else []
    columns = _settings(found) + _costs_and_metrics(found, against)
    for name in names if at else ():
        title = f"validation {METRICS[name].title}, at equal {at}"
        columns.append(_column(found, against, (f"validation_{name}_at_{at}", title, name, measure)))
    columns.append(ResultColumn("seeds", "seeds", tuple(str(len(group.runs)) for group in found.groups)))
    return ComparisonReport(
        found,
        tuple(comparisons),
        {name: f"validation_{name}_at_{at}" if at else _column_of(name) for name in names},
        in_line(_introduction(found, against, at, budget, clocks)),
        ResultTable(tuple(columns)),
        verdicts.of_sweep(found),
        tuning.table(found.sweeps),
        tuple(map(in_line, _notes(found, against, comparisons))),
    )


def _differences(comparisons: Sequence[GroupComparison]) -> ResultTable:
    columns: dict[tuple[str, str], Callable[[GroupComparison], Number | str]] = {
        ("setting", "setting"): lambda compared: compared.group.label,
        ("baseline", "against"): lambda compared: compared.baseline.label,
        ("metric", "metric"): lambda compared: METRICS[compared.metric].title,
        ("difference", "difference"): _difference,
        ("p", "p"): lambda compared: Number(compared.p, P),
        ("effect", "effect"): lambda compared: Number(float(compared.difference.effect), EFFECT, sign="+"),
    }
    if not all(math.isnan(compared.wilcoxon) for compared in comparisons):
        columns["p_wilcoxon", "p of Wilcoxon"] = lambda compared: Number(compared.wilcoxon, P)
    columns["conclusion", "conclusion"] = lambda compared: compared.sentence
    return ResultTable(tuple(ResultColumn(*names, tuple(map(cell, comparisons))) for names, cell in columns.items()))


def _difference(compared: GroupComparison) -> Number:
    mean, half_width = float(compared.difference.mean), float(compared.difference.half_width)
    return Number(mean, METRICS[compared.metric], half_width, sign="+")


def _column_of(metric: str) -> str:
    return metric if metric in metrics.COSTS else f"test_{metric}"


def default_metrics(found: Found) -> list[str]:
    """Lists the metrics by which the tasks of the runs choose their best steps."""
    return list(dict.fromkeys(tasks.find(run.settings["task"]).best for group in found.groups for run in group.runs))


def _check_measured(found: Found, name: str, measure: compare.Measure) -> None:
    metrics.find(name)
    values = {name: [measure(run, name) for group in found.groups for run in group.runs] for name in METRICS}
    if all(math.isnan(value) for value in values[name]):
        measured = [name for name, of_runs in values.items() if not all(math.isnan(value) for value in of_runs)]
        raise unknown("metric of these runs", name, measured)


def _settings(found: Found) -> list[ResultColumn]:
    """Makes a column for each field in which the groups differ, leaving out columns that repeat another one."""
    columns: dict[tuple[str, ...], ResultColumn] = {}
    fields = dict.fromkeys([*found.keys, *found.groups[0].settings])
    for field in fields:
        cells = tuple(str(group.settings[field]) for group in found.groups)
        columns.setdefault(cells, ResultColumn(field, short(field), cells))
    return list(columns.values())


def _costs_and_metrics(found: Found, against: Baseline | None) -> list[ResultColumn]:
    """Makes a column for each cost and metric that at least one run has."""
    figures: list[Figure] = [(name, METRICS[name].title, name, Run.value) for name in metrics.COSTS]
    for split in ("train", "test"):
        measure = functools.partial(Run.value, split=split)
        of_split = [name for name in METRICS if name not in metrics.COSTS]
        figures += [(f"{split}_{name}", f"{split} {METRICS[name].title}", name, measure) for name in of_split]
    columns = [_column(found, against, figure) for figure in figures]
    return [column for column in columns if not all(math.isnan(number.value) for number in column.numbers)]


def _column(found: Found, against: Baseline | None, figure: Figure) -> ResultColumn:
    """Computes each group's mean with its interval, ranked among those that differ in the baseline's field alone."""
    column, title, name, measure = figure
    summaries = [statistics.summary(np.array([measure(run, name) for run in group.runs])) for group in found.groups]
    means = [float(summary.mean) for summary in summaries]
    blocks = [against.block(group, found) if against else () for group in found.groups]
    placed = dict.fromkeys(range(len(means)), 0)
    for block in set(blocks) if against else ():
        inside = [i for i, other_block in enumerate(blocks) if other_block == block]
        placed |= dict(zip(inside, tables.ranks([means[i] for i in inside], METRICS[name].lower), strict=True))
    widths = [math.nan if METRICS[name].exact else float(summary.half_width) for summary in summaries]
    cells = [
        Number(mean, METRICS[name], width, placed[i]) for i, (mean, width) in enumerate(zip(means, widths, strict=True))
    ]
    return ResultColumn(column, title, tuple(cells))


def _introduction(found: Found, against: Baseline | None, at: str, budget: float, clocks: bool) -> str:
    counts = [len(group.runs) for group in found.groups]
    seeds = " and ".join(map(str, sorted(set(counts))))
    said = [f"{counted(len(counts), 'setting')}, {counted(sum(counts), 'run')}; seeds per setting: {seeds}."]
    if against is None:
        return f"{said[0]} There is nothing to compare with."
    said.append(f"The baseline is {compare.text_of(against)}.")
    if at:
        unit = {"examples": "training examples", "seconds": "seconds of training", "flops": "FLOPs of training"}[at]
        said.append(f"Differences compare validation curves at {budget:,.4g} {unit}, when the first run had finished.")
    said.append(compare.fairness(found, against, "Whole runs had" if at else "Compared at", clocks))
    return " ".join(said)


def _notes(found: Found, against: Baseline | None, comparisons: Sequence[GroupComparison]) -> tuple[str, ...]:
    notes = [
        f"Figures are means over seeds ± half their {1 - LEVEL:.0%} interval, at the step that was best on validation "
        "data. Figures of training data come from the last whole epoch up to that step or, if there is none, from the "
        "last log line up to it.",
    ]
    if against:
        notes.append(f"Ranks, in brackets, compare rows that differ in {short(against.field)} alone.")
    if rest := [short(field) for field in found.groups[0].settings if field not in found.keys]:
        keys = " and ".join(map(short, found.keys))
        notes.append(f"Rows differ in more than {keys}, which may explain differences too: {', '.join(rest)}.")
    paired = [group for pair in against.pairs(found) for group in pair] if against else found.groups
    if alone := [group.label for group in found.groups if group not in paired]:
        notes.append(f"No baseline equals these rows in all other fields: {'; '.join(alone)}.")
    if different := compare.origins(found):
        notes.append(f"The runs were not made alike, which may explain differences too: {different}.")
    if any(run.together > 1 for group in found.groups for run in group.runs):
        notes.append(
            "Seeds that were trained together in one program share its seconds equally; their memory is that of all of "
            "them together."
        )
    notes += _notes_on_tests(comparisons)
    return (*filter(None, notes), *tuning.notes(found.sweeps), *found.left_out)


def _notes_on_tests(comparisons: Sequence[GroupComparison]) -> list[str]:
    tests = sum(not math.isnan(comparison.p) for comparison in comparisons)
    if not tests:
        untested = "No difference was tested: a test needs two seeds per setting, and a spread between them."
        return [untested] if comparisons else []
    return [
        f"± is half a {1 - LEVEL:.0%} confidence interval (t distribution). Those of differences are not corrected for "
        "other comparisons.",
        "p comes from a t-test, paired by seed (Welch's where it says unpaired), and is corrected by Holm's method for "
        f"the {counted(tests, 'test')} of the table: if there is no difference at all, the table makes a false claim "
        f"with a probability of at most {LEVEL:.0%}. The effect is the difference in standard deviations, Cohen's d_z "
        "(g where unpaired) with Hedges' correction.",
        compare.wilcoxon_text(comparisons),
    ]
