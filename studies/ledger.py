"""The ledger: claims of five papers and known outcomes of trials, with verdicts that follow from their grounds by rule.

`claims/*.toml` has the claims. Each claim names at most one ground:

- `study` and `comparison`: the verdict of `analysis.verdicts`; with `curve` that on all evaluations together, with
  `split` that on training data. The study declared the comparison, or it is in `declarations/afterwards` and was chosen
  when the runs had been trained. The claim is a direction or, with `amount`, that this much is gained; `claimed`
  replaces what the study declared. If nothing is claimed of the comparison, the claim is that there is some difference:
  it *holds* if settings are *better* or *worse*.
- `shown`: tests that prove the claim, so it *holds*; `refuted`: tests that prove the opposite, so it *does not hold*.
- `sums`: the paper's own figures. The claim *holds* if each sum equals the printed value to its last digit, or is above
  0.
- `trial`, `spec` and `other`: the kept table of trials, at the trial's greatest size. The claim is that the mechanism
  `spec` is better than `other`, worse, or equal within 5 points, as `claimed` says; all of these are one family.
- `ratio`: a benchmark. A claim that the ratio is `above` or `below` 1 *holds* if it is so in every round, *does not
  hold* if it is so in none, and is *undecided* otherwise.

A claim without a ground is *not tested*. Neither is one of the class *another question*, whatever was measured, such as
a training of another kind, or the time and memory of another machine. Below the paper's size, and on other data, claims
are *seen* or *not seen* instead of holding or not holding, see `worded`. Marks qualify a verdict.
"""

import csv
import dataclasses
import functools
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import metrics, tables, trials, verdicts
from analysis.verdicts import BETTER, DOES_NOT, HOLDS, NOT_TESTED, UNDECIDED, WORSE, Verdict
from studies import kept, numbers
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from train.grids import declaration, trying
from train.grids.declaration import Comparison, Declaration
from train.grids.trial_table import TrialTable

CLAIMS = Path(__file__).parent / "claims"
AFTERWARDS = DECLARATIONS / "afterwards"
PAPERS = ("digiugno", "wikipedia", "sanger", "zhang", "hosseini", "literature")
ANOTHER = "another question"
CLASSES = ("exact", "full size", "other data", "reduced", "reduced, other data", ANOTHER, "")
BELOW = {"other data": "on these data", "reduced": "at this size", "reduced, other data": "at this size"}
EFFECT = re.compile(r"\{(\w+): (.+?)\}")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
found = functools.cache(kept.find)  # each archive is read once
TITLES = ("where", "claim", "the paper's figures", "class", "verdict", "marks", "measured", "by", "remarks")
MARKS = {
    "untuned": "no learning rate was tuned",
    "afterwards": "the comparison, its metric, its data or its claim was chosen when runs had been trained",
    "new rule": "the rule that judges it changed when the runs had been trained",
    "other metric": "learning rates were chosen by another metric than the one that is judged",
    "grid end": "a chosen learning rate is at an end of its grid",
    "not flat": "validation still changed by more than the margin in the last fifth of training",
    "flatness unknown": "validation had no such metric in training",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim of a paper, and the ground on which it is judged.

    Attributes:
      paper: Name of the first author.
      place: The claim's place in the paper.
      says: The claim in a plain sentence.
      printed: The paper's figures.
      kind: The class of evidence, one of `CLASSES`; '' for none, or for that of the study.
      study: A study of `studies.replication`.
      comparison: The name of one of its comparisons.
      metric: The metric, if it is not the declared one.
      split: The data of the claim, `test` or `train`.
      curve: Whether the claim is about all evaluations.
      amount: The claimed gain in the metric's unit; 0 if only a direction is claimed.
      late: Whether the ground was chosen when runs of the study had been trained.
      was: The study and the comparison that judged the claim before, if these were others.
      shown: Tests that prove the claim, as pytest names them.
      refuted: Tests that prove the opposite.
      sums: Pairs of a sum and its printed value.
      ratio: A `file` of `benchmarks/results`, the place `at` which it has a value, and perhaps a place to divide it
        `over`.
      claimed: The claim about a ratio: `above` or `below` 1; about a trial: `better`, `worse` or `equal`; about a
        comparison: a claim of `train.grids.declaration` that replaces the declared one. '' is no claim.
      trial: A trial of `configs/trials.json`.
      spec: A mechanism.
      other: The mechanism that it is compared with, or `chance`.
      answer: Our answer to the paper's main claim, in a sentence; `{STUDY: COMPARISON}` stands for a difference.
      note: Remarks.
    """

    paper: str
    place: str
    says: str
    printed: str = ""
    kind: str = ""
    study: str = ""
    comparison: str = ""
    metric: str = ""
    split: str = "test"
    curve: bool = False
    amount: float = 0.0
    late: bool = False
    was: Sequence[str] = ()
    shown: Sequence[str] = ()
    refuted: Sequence[str] = ()
    sums: Sequence[Sequence[str]] = ()
    ratio: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    claimed: str = ""
    trial: str = ""
    spec: str = ""
    other: str = ""
    answer: str = ""
    note: str = ""

    @property
    def evidence(self) -> str:
        """The class of evidence, one of `CLASSES`."""
        return ALL[self.study].kind if self.study else self.kind

    @property
    def verdict(self) -> str:
        """The verdict that follows from the ground by rule, in the words of its class."""
        return worded(self.ruled, self.evidence)

    @property
    def ruled(self) -> str:
        """The verdict that follows from the ground by rule, in the words of full size."""
        if self.evidence == ANOTHER:
            return NOT_TESTED
        if self.shown or self.refuted:
            return HOLDS if self.shown else DOES_NOT
        if self.sums:
            return HOLDS if all(numbers.comes_to(*pair) for pair in self.sums) else DOES_NOT
        if self.ratio:
            return self._of_rounds()
        if self.study:
            return self._of_study()
        return tried()[self.says].words if self.trial else NOT_TESTED

    @property
    def before(self) -> str:
        """The verdict by the rules that held when the runs were trained; '' for a claim that had no row then."""
        study, comparison = self.was or (self.study, self.comparison)
        verdict = as_declared(study, self.metric, self.split).get(comparison) if study else None
        if verdict is None or self.evidence == ANOTHER:
            return ""
        return self._of_curve(verdict) if self.curve else _some_difference(verdict.words)

    @property
    def marks(self) -> tuple[str, ...]:
        """The `MARKS` that a reader must know beside the verdict; none for claims that are not tested."""
        verdict = self._judged()
        if verdict is None or self.ruled == NOT_TESTED:
            return ()
        study, made, row = ALL[self.study], declared(self.study), verdict.comparison
        before = as_declared(self.study, self.metric, self.split).get(self.comparison)
        elsewhere = (self.metric or made.metric, self.split, self.curve) != (made.metric, "test", False)
        so = {
            "untuned": not study.tune,
            "afterwards": self.late or not study.declared or before is None or elsewhere,
            "new rule": bool(self.was) or (before is not None and before.comparison != row and not self.curve),
            "other metric": bool(study.tune) and _sweep(self.study)["tune"]["metric"] != (self.metric or made.metric),
            "grid end": any(map(functools.partial(_at_an_end, self.study), (*row.settings, *row.baselines))),
            "not flat": _late_change(self.study) > made.margin,
            "flatness unknown": math.isnan(_late_change(self.study)),
        }
        return tuple(mark for mark in MARKS if so[mark])

    @property
    def measured(self) -> str:
        """The effect with its interval, or the ratio with the range of its rounds; '' if nothing was measured."""
        if self.ratio:
            value, least, greatest = numbers.rounds(self.ratio)
            return f"{value:.2g}" if least == greatest else f"{value:.2f} ({least:.2f} – {greatest:.2f})"
        if self.sums:
            return ", ".join(f"`{text} = {numbers.come_to(text, printed)}`" for text, printed in self.sums)
        if self.trial:
            return _effect_of_trial(tried()[self.says])
        verdict = self._judged()
        return "" if verdict is None or self.curve else self._effect(verdict)

    @property
    def grounds(self) -> str:
        """Links to the ground of the verdict."""
        tests = dict.fromkeys(Path(test.partition("::")[0]).stem for test in (*self.shown, *self.refuted))
        studied = f"[{self.study}](studies/{self.study}.md)" if self.study else ""
        measured = f"[{self.ratio['file']}](#evidence)" if self.ratio else ""
        sums = "its own figures" if self.sums else "[trials](trials.md)" if self.trial else ""
        return " ".join([*(f"[{name}](#evidence)" for name in tests), studied, measured, sums]).strip() or "–"

    def _judged(self) -> Verdict | None:
        if not self.study:
            return None
        return judged(self.study, self.metric, self.split, bool(self.amount)).get(self.comparison)

    def _of_study(self) -> str:
        verdict = self._judged()
        if verdict is None:
            return NOT_TESTED
        return self._of_curve(verdict) if self.curve else _some_difference(verdict.words)

    def _of_curve(self, verdict: Verdict) -> str:
        return verdicts.judge_curve(found(self.study), declared(self.study, self.metric), verdict.comparison)

    def _of_rounds(self) -> str:
        if not self.claimed:
            return NOT_TESTED
        _, least, greatest = numbers.rounds(self.ratio)
        so = [value > 1 if self.claimed == "above" else value < 1 for value in (least, greatest)]
        return HOLDS if all(so) else UNDECIDED if any(so) else DOES_NOT

    def _effect(self, verdict: Verdict) -> str:
        metric = metrics.find(self.metric or declared(self.study).metric)
        number, seeds = verdict.number(metric), len(verdict.differences)
        title = "training " * (self.split == "train") + metric.title.removesuffix(", %")
        of = title if metric.unit and title.startswith(metric.unit) else f"{metric.unit} of {title}".strip()
        said = f"{number} {of}, {seeds} seeds"
        if verdict.comparison.claim in verdicts.ONE_SIDED and self.evidence != ANOTHER:
            least = verdicts.limit(verdict.comparison, declared(self.study).margin)
            said += f"; asked is a gain above {metric.text(least, '+')}"
        effect = verdict.comparison.effect * (-1 if metric.lower else 1)
        if verdict.words == UNDECIDED:
            said += f"; finds {metric.text(verdict.detects)}"
        if verdict.words == UNDECIDED and effect and abs(effect - number.value) > number.spread:
            said += f"; alone, its interval leaves out the paper's {metric.text(effect, '+')}"
        return said


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Reads all claims, in the papers' order."""
    return tuple(Claim(paper=read["paper"], **row) for read in map(_paper, PAPERS) for row in read["claim"])


def worded(verdict: str, kind: str) -> str:
    """Words a verdict as its class allows: *seen* or *not seen* below the paper's size, or on other data."""
    if kind not in BELOW:
        return verdict
    return {HOLDS: f"seen {BELOW[kind]}", DOES_NOT: f"not seen {BELOW[kind]}"}.get(verdict, verdict)


@functools.cache
def declared(study: str, metric: str = "", split: str = "test") -> Declaration:
    """Reads a study's declaration; in another metric, or on other data, without the declared effects."""
    return _measured_by(declaration.read(DECLARATIONS / f"{study}.json"), metric, split)


@functools.cache
def as_declared(study: str, metric: str = "", split: str = "test") -> dict[str, Verdict]:
    """Judges a study's declared comparisons as they were declared, by name; empty if no run is kept."""
    return _judged_by(study, [declared(study, metric, split)], split)


@functools.cache
def judged(study: str, metric: str = "", split: str = "test", amounts: bool = False) -> dict[str, Verdict]:
    """Judges the ledger's claims about a study, by the names of comparisons; empty if no run is kept.

    Comparisons that the study declared are a family, and those chosen afterwards are another. Directions and amounts
    are judged separately: with `amounts`, a claim with an amount is that as much is gained.
    """
    file = AFTERWARDS / f"{study}.json"
    families = [declared(study, metric, split)]
    families += [_measured_by(declaration.read(file), metric, split)] if file.is_file() else []
    asked = {
        claim.comparison: claim
        for claim in claims()
        if (claim.study, claim.metric, claim.split) == (study, metric, split) and bool(claim.amount) == amounts
    }
    made = [
        dataclasses.replace(family, family=[_claimed(row, asked.get(row.name)) for row in family.family])
        for family in families
    ]
    return _judged_by(study, made, split)


@functools.cache
def tried() -> dict[str, Verdict]:
    """Judges all claims on trials as one family, by their sentences."""
    of_trials = [claim for claim in claims() if claim.trial]
    table = TrialTable.read(trying.KEPT)
    family = [Comparison(claim.says, [claim.spec], [claim.other], claim.claimed) for claim in of_trials]
    pairs = [trials.at_greatest(table, claim.trial, claim.spec, claim.other) for claim in of_trials]
    return {row.comparison.name: row for row in verdicts.judge_differences(pairs, trials.declared(family))}


def table(paper: str) -> str:
    """Writes a paper's rows in Markdown."""
    rows = [claim for claim in claims() if claim.paper == _paper(paper)["paper"]]
    return tables.plain_markdown(TITLES, map(_cells, rows))


def main() -> str:
    """Writes a row for each paper: its main claim, and our answer."""
    main = [claim for claim in claims() if claim.answer]
    rows = [(c.paper, f"{c.says} ({c.place})", _with_effects(c.answer), c.evidence, _marks_of_answer(c)) for c in main]
    return tables.plain_markdown(("paper", "its main claim", "our answer", "class", "marks"), rows)


def changes() -> str:
    """Tabulates the claims on trained models whose verdict changed with the rule or the comparison."""
    changed = [claim for claim in claims() if claim.before and claim.before != claim.ruled]
    rows = [(c.paper, c.says, c.before, f"**{c.ruled}**", _reason(c)) for c in changed]
    return tables.plain_markdown(("paper", "claim", "before", "now", "why"), rows)


def marks() -> str:
    """Tabulates the meaning of each mark, and the number of rows that have it."""
    rows = [(f"*{mark}*", text, str(sum(mark in c.marks for c in claims()))) for mark, text in MARKS.items()]
    return tables.plain_markdown(("mark", "meaning", "rows"), rows)


def write_csv(file: Path) -> None:
    """Writes all rows as comma-separated values."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("paper", *TITLES))
        rows = ((claim.paper, *_plain_cells(claim)) for claim in claims())
        writer.writerows([LINK.sub(r"\1", cell) for cell in row] for row in rows)


def counts() -> str:
    """Tabulates the number of rows by class and verdict."""
    said = [(claim.evidence or "none", claim.verdict.partition(" within")[0]) for claim in claims()]
    words = sorted({word for _, word in said})
    kinds = [kind for kind in (*CLASSES[:-1], "none") if kind in dict(said)]
    rows = [(kind, *(str(said.count((kind, word)) or "–") for word in words)) for kind in kinds]
    return tables.plain_markdown(("class", *words), rows)


def evidence() -> str:
    """Tabulates the files behind the ledger's keys, with the command that makes or runs each."""
    tests = dict.fromkeys(test.partition("::")[0] for claim in claims() for test in (*claim.shown, *claim.refuted))
    rows = [(Path(file).stem, f"`{file}`", f"`python -m pytest {file}`") for file in tests]
    ratios = {claim.ratio["file"]: claim.ratio for claim in claims() if claim.ratio}
    rows += [(f, f"`{numbers.RESULTS / f}.json`", f"`{numbers.command(ratio)}`") for f, ratio in ratios.items()]
    return tables.plain_markdown(("key", "file", "command"), rows)


def _cells(claim: Claim) -> tuple[str, ...]:
    cells = [cell.replace("|", "\\|") for cell in _plain_cells(claim)]
    cells[TITLES.index("verdict")] = f"**{claim.verdict}**"
    return tuple(cells)


def _plain_cells(claim: Claim) -> tuple[str, ...]:
    words = (claim.place, claim.says, claim.printed, claim.evidence or "–", claim.verdict, ", ".join(claim.marks))
    return (*words, claim.measured, claim.grounds, claim.note)


def _claimed(row: Comparison, claim: Claim | None) -> Comparison:
    """Gives a comparison the ledger's claim: a direction, another kind of claim, or an amount."""
    if claim is None or not claim.amount:
        return dataclasses.replace(row, claim=claim.claimed or row.claim if claim else row.claim, effect=0.0)
    return dataclasses.replace(row, claim="as much", effect=claim.amount)


def _measured_by(made: Declaration, metric: str, split: str) -> Declaration:
    if metric in ("", made.metric) and split == "test":
        return made
    family = [dataclasses.replace(row, effect=0.0) for row in made.family]
    return dataclasses.replace(made, metric=metric or made.metric, family=family)


def _judged_by(study: str, families: Sequence[Declaration], split: str) -> dict[str, Verdict]:
    runs = found(study)
    rows = [row for made in families for row in verdicts.judge(runs, made, split)] if runs else []
    return {row.comparison.name: row for row in rows}


def _some_difference(words: str) -> str:
    """Lets a comparison without a claim hold if its settings differ, whichever is better."""
    return HOLDS if words in (BETTER, WORSE) else words


def _reason(claim: Claim) -> str:
    if claim.was:
        return f"another comparison judges it: [{claim.study}](studies/{claim.study}.md), *{claim.comparison}*"
    if claim.claimed:
        return "to lose nothing has one side"
    return "as much has a limit of its own" if claim.amount else "a direction does not need the paper's amount"


def _with_effects(answer: str) -> str:
    """Replaces each `{STUDY: COMPARISON}` by the comparison's difference."""

    def effect(match: re.Match[str]) -> str:
        study, name = match.groups()
        metric = metrics.find(declared(study).metric)
        return metric.with_unit(str(judged(study)[name].number(metric)))

    return EFFECT.sub(effect, answer)


def _marks_of_answer(claim: Claim) -> str:
    """Collects the marks of the claims of directions behind the differences in an answer."""
    plain = [c for c in claims() if c.split == "test" and not (c.metric or c.curve or c.amount)]
    behind = {mark for c in plain if (c.study, c.comparison) in EFFECT.findall(claim.answer) for mark in c.marks}
    return ", ".join(mark for mark in MARKS if mark in behind)


@functools.cache
def _sweep(study: str) -> Mapping[str, Any]:
    return kept.read(study).sweeps[0]


def _at_an_end(study: str, setting: str) -> bool:
    """Tells whether a setting chose the lowest or the highest rate that it tried."""
    cell = _sweep(study).get("cells", {}).get(setting, {})
    if "tried" not in cell:
        return False
    tried, chosen = sorted(map(float, cell["tried"])), float(next(iter(cell["chosen"].values())))
    return chosen in (tried[0], tried[-1])


@functools.cache
def _late_change(study: str) -> float:
    """Measures the greatest mean change of a setting's validation metric in the last fifth; NaN if it has none."""
    metric = declared(study).metric
    changes = [np.mean([run.late_change(metric) for run in group.runs]) for group in found(study).groups]
    return float(np.max(np.abs(changes)))


def _effect_of_trial(verdict: Verdict) -> str:
    if not len(verdict.differences):
        return ""
    said = f"{verdict.number(trials.ACCURACY)} points of accuracy, {len(verdict.differences)} seeds"
    return said + (f"; finds {trials.finds(verdict)}" if verdict.words == UNDECIDED else "")


@functools.cache
def _paper(name: str) -> dict[str, Any]:
    return tomllib.loads((CLAIMS / f"{name}.toml").read_text(encoding="utf-8"))
