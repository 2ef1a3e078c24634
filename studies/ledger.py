"""The ledger: claims of five papers and known outcomes of trials, whose verdicts follow by rule from what they name.

`claims/*.toml` has the claims. Each names at most one ground:

- `study` and `comparison`: what `analysis.verdicts` says of it; with `curve` at every evaluation together, with `split`
  of training data. The comparison is one that the study declared, or one of `declarations/afterwards`, which were
  chosen when the runs were in. It claims a direction or, with `amount`, that as much is gained; `claimed` is what is
  claimed where the study declared something else. Where nothing is claimed, some difference is: it *holds* where
  settings are *better* or *worse*;
- `shown`: tests that prove it, so it *holds*; `refuted`: tests that prove the opposite, so it *does not hold*;
- `sums`: the paper's own figures. It *holds* where each comes to what is printed, to its last digit, or is above 0;
- `trial`, `spec` and `other`: of the kept table of trials, at the trial's greatest size. It claims that the mechanism
  `spec` is `claimed` to be better than `other`, or worse, or equal within 5 points; all of these are one family;
- `ratio`: of a benchmark. A claim that it is `above` or `below` 1 *holds* where it is so in every round, *does not
  hold* where it is so in none, and is *undecided* otherwise.

A claim without a ground is *not tested*. So is one of the class *another question*, whatever was measured: a training
of another kind, or the time and memory of another machine. Below the paper's size, and on other data, what holds is
called *seen* and what does not hold *not seen*, see `worded`. Marks say what a reader must know beside a verdict.
"""

import ast
import csv
import dataclasses
import functools
import json
import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis import metrics, tables, trials, verdicts
from analysis.verdicts import BETTER, DOES_NOT, HOLDS, NOT_TESTED, UNDECIDED, WORSE, Verdict
from attention.errors import UsageError, unknown
from models.files import read_json
from studies import kept, runs
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from train.grids import declaration
from train.grids.declaration import Comparison, Declaration
from train.grids.trial_table import TrialTable

CLAIMS = Path(__file__).parent / "claims"
AFTERWARDS = DECLARATIONS / "afterwards"
PAPERS = ("digiugno", "wikipedia", "sanger", "zhang", "hosseini", "literature")
TRIALS = Path(__file__).parent.parent / "configs/trials.json"
ANOTHER = "another question"
CLASSES = ("exact", "full size", "other data", "reduced", "reduced, other data", ANOTHER, "")
BELOW = {"other data": "on these data", "reduced": "at this size", "reduced, other data": "at this size"}
SPLITS = ("test", "train")
EFFECT = re.compile(r"\{(\w+): (.+?)\}")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
TITLES = ("where", "claim", "the paper's figures", "class", "verdict", "marks", "measured", "by", "remarks")
MARKS = {
    "untuned": "no learning rate was tuned",
    "afterwards": "the comparison, its metric, its data or what it judges was chosen when runs were in",
    "new rule": "the rule that judges it changed when the runs were in",
    "other metric": "learning rates were chosen by another metric than the one that is judged",
    "grid end": "a learning rate that was chosen stands at an end of its grid",
    "not flat": "validation still changed by more than the margin in the last fifth of training",
}


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says, and the ground on which it is judged.

    Attributes:
      paper: Name of the first author.
      place: Where it says so.
      says: What it says, in a plain sentence.
      printed: The paper's figures.
      kind: Class of the evidence, of `CLASSES`; '' is none, or that of the study.
      study: A study of `studies.replication`.
      comparison: The name of one of its comparisons.
      metric: The metric, in place of the one that is declared.
      split: The data that it is about, of `SPLITS`.
      curve: Whether the claim is about all evaluations.
      amount: How much is claimed to be gained, in the metric's unit; 0 is a claim of a direction.
      late: Whether what judges it was chosen when runs of the study were in.
      was: The study and the comparison that judged it before, where others did.
      shown: Tests that prove it, as pytest names them.
      refuted: Tests that prove the opposite.
      sums: Pairs of a sum and what is printed for it.
      ratio: `file` of `benchmarks/results`, `at` what place in it, and perhaps `over` what other place.
      claimed: What is claimed of the ratio: `above` or `below` 1; of the trial: `better`, `worse` or `equal`; of the
        comparison: a claim of `train.grids.declaration`, in place of the one that the study declared. '' is nothing.
      trial: A trial of `configs/trials.json`.
      spec: A mechanism.
      other: What it is compared with, a mechanism or `chance`.
      answer: What we say of the paper's main claim, in a sentence; `{STUDY: COMPARISON}` stands for a difference.
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

    def __post_init__(self) -> None:
        """Raises a UsageError where the class or the split is unknown, or there are several grounds or classes."""
        if self.kind not in CLASSES:
            raise unknown(f"class of the claim {self.says!r}", self.kind, CLASSES[:-1])
        if self.split not in SPLITS:
            raise unknown(f"split of the claim {self.says!r}", self.split, SPLITS)
        if sum(map(bool, (self.study, self.shown, self.refuted, self.sums, self.ratio, self.trial))) > 1:
            raise UsageError(f"The claim {self.says!r} has several grounds; give it one, or make two claims of it.")
        if self.study and self.kind:
            raise UsageError(f"The claim {self.says!r} has the class of its study, {self.study}; give it no other.")

    @property
    def evidence(self) -> str:
        """The class of its evidence, of `CLASSES`."""
        return ALL[self.study].kind if self.study else self.kind

    @property
    def verdict(self) -> str:
        """What follows from the ground by rule, in the words of its class."""
        return worded(self.ruled, self.evidence)

    @property
    def ruled(self) -> str:
        """What follows from the ground by rule, in the words that are those of full size."""
        if self.evidence == ANOTHER:
            return NOT_TESTED
        if self.shown or self.refuted:
            return HOLDS if self.shown else DOES_NOT
        if self.sums:
            return HOLDS if all(comes_to(*pair) for pair in self.sums) else DOES_NOT
        if self.ratio:
            return self._of_rounds()
        if self.study:
            return self._of_study()
        return tried()[self.says].words if self.trial else NOT_TESTED

    @property
    def before(self) -> str:
        """What the rules said that stood when the runs came in; '' of a claim that had no row."""
        study, comparison = self.was or (self.study, self.comparison)
        judged = as_declared(study, self.metric, self.split).get(comparison) if study else None
        if judged is None or self.evidence == ANOTHER:
            return ""
        return self._of_curve(judged) if self.curve else _some_difference(judged.words)

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know beside the verdict, of `MARKS`; nothing of what is not tested."""
        judged = self._judged()
        if judged is None or self.ruled == NOT_TESTED:
            return ()
        study, made, row = ALL[self.study], declared(self.study), judged.comparison
        before = as_declared(self.study, self.metric, self.split).get(self.comparison)
        elsewhere = (self.metric or made.metric, self.split, self.curve) != (made.metric, "test", False)
        so = {
            "untuned": not study.tune,
            "afterwards": self.late or not study.declared or before is None or elsewhere,
            "new rule": bool(self.was) or (before is not None and before.comparison != row and not self.curve),
            "other metric": bool(study.tune) and _tuned(self.study)["metric"] != (self.metric or made.metric),
            "grid end": any(map(functools.partial(_at_an_end, self.study), (*row.settings, *row.baselines))),
            "not flat": _late_change(self.study) > made.margin,
        }
        return tuple(mark for mark in MARKS if so[mark])

    @property
    def measured(self) -> str:
        """The effect with its interval, or the ratio with the range of its rounds; '' where nothing was measured."""
        if self.ratio:
            value, least, greatest = rounds(self.ratio)
            return f"{value:.2g}" if least == greatest else f"{value:.2f} ({least:.2f} – {greatest:.2f})"
        if self.sums:
            return ", ".join(f"`{text} = {_come_to(text, printed)}`" for text, printed in self.sums)
        if self.trial:
            return _effect_of_trial(tried()[self.says])
        judged = self._judged()
        return "" if judged is None or self.curve else self._effect(judged)

    @property
    def grounds(self) -> str:
        """Links to what the verdict follows from."""
        tests = dict.fromkeys(Path(test.partition("::")[0]).stem for test in (*self.shown, *self.refuted))
        studied = f"[{self.study}](studies/{self.study}.md)" if self.study else ""
        measured = f"[{self.ratio['file']}_cpu](#evidence)" if self.ratio else ""
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
        return verdicts.judge_curve(kept.find(self.study), declared(self.study, self.metric), verdict.comparison)

    def _of_rounds(self) -> str:
        if not self.claimed:
            return NOT_TESTED
        _, least, greatest = rounds(self.ratio)
        so = [value > 1 if self.claimed == "above" else value < 1 for value in (least, greatest)]
        return HOLDS if all(so) else UNDECIDED if any(so) else DOES_NOT

    def _effect(self, judged: Verdict) -> str:
        metric = metrics.find(self.metric or declared(self.study).metric)
        number, seeds = judged.number(metric), len(judged.differences)
        title = "training " * (self.split == "train") + metric.title.removesuffix(", %")
        of = title if metric.unit and title.startswith(metric.unit) else f"{metric.unit} of {title}".strip()
        said = f"{number} {of}, {seeds} seeds"
        if judged.comparison.claim in verdicts.ONE_SIDED and self.evidence != ANOTHER:
            least = verdicts.limit(judged.comparison, declared(self.study).margin)
            said += f"; asked is a gain above {metric.text(least, '+')}"
        effect = judged.comparison.effect * (-1 if metric.lower else 1)
        if judged.words == UNDECIDED:
            said += f"; finds {metric.text(judged.detects)}"
        if judged.words == UNDECIDED and effect and abs(effect - number.value) > number.spread:
            said += f"; alone, its interval leaves out the paper's {metric.text(effect, '+')}"
        return said


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Reads all claims, in the papers' order."""
    return tuple(Claim(paper=read["paper"], **row) for read in map(_paper, PAPERS) for row in read["claim"])


def worded(verdict: str, kind: str) -> str:
    """Words a verdict as its class allows: below the paper's size, or on other data, it is *seen* or *not seen*."""
    if kind not in BELOW:
        return verdict
    return {HOLDS: f"seen {BELOW[kind]}", DOES_NOT: f"not seen {BELOW[kind]}"}.get(verdict, verdict)


def declared(study: str, metric: str = "", split: str = "test") -> Declaration:
    """Declares what a study compares; in another metric, or on other data, without the declared effects."""
    return _measured_by(declaration.read(DECLARATIONS / f"{study}.json"), metric, split)


@functools.cache
def as_declared(study: str, metric: str = "", split: str = "test") -> dict[str, Verdict]:
    """Judges what a study declared as it was declared, by name; empty where no run is kept."""
    return _judged_by(study, [declared(study, metric, split)], split)


@functools.cache
def judged(study: str, metric: str = "", split: str = "test", amounts: bool = False) -> dict[str, Verdict]:
    """Judges what the ledger claims of a study, by name; empty where no run is kept.

    What the study declared is a family, and what was chosen afterwards another. Directions and amounts are apart: where
    the ledger has an amount, the family of amounts claims that as much is gained, in place of the direction.
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
    """Judges all claims on trials, by what they say, as one family."""
    of_trials = [claim for claim in claims() if claim.trial]
    table = TrialTable.read(TRIALS)
    family = [Comparison(claim.says, [claim.spec], [claim.other], claim.claimed) for claim in of_trials]
    found = [trials.at_greatest(table, claim.trial, claim.spec, claim.other) for claim in of_trials]
    judged = verdicts.judge_differences(found, trials.declared(family))
    return {verdict.comparison.name: verdict for verdict in judged}


def rounds(ratio: Mapping[str, Any]) -> tuple[float, float, float]:
    """Gives the median, least and greatest of a ratio; all the same for what is planned, such as bytes."""
    data = read_json(runs.ROOT / f"benchmarks/results/{ratio['file']}_cpu.json")
    value = _at(data, ratio["at"])
    if isinstance(value, Mapping):
        return value["median"], value["least"], value["greatest"]
    quotient = value / (_at(data, ratio["over"]) if "over" in ratio else 1)
    return quotient, quotient, quotient


def comes_to(text: str, printed: str) -> bool:
    """Tells whether a sum comes to what is printed: to its last digit, in per cent where it has %, or above 0."""
    return value_of(text) > 0 if printed == "> 0" else _come_to(text, printed) == printed


def value_of(text: str) -> float:
    """Computes a sum such as `(98.62 - 98.12) / 98.12`."""
    return _value(ast.parse(text, mode="eval").body)


def table(paper: str) -> str:
    """Writes a paper's rows in Markdown."""
    rows = [claim for claim in claims() if claim.paper == _paper(paper)["paper"]]
    return tables.plain_markdown(TITLES, map(_cells, rows))


def main() -> str:
    """Writes a row for each paper: its main claim, and what we say of it."""
    main = [claim for claim in claims() if claim.answer]
    rows = [(c.paper, f"{c.says} ({c.place})", _with_effects(c.answer), c.evidence, _marks_of_answer(c)) for c in main]
    return tables.plain_markdown(("paper", "its main claim", "our answer", "class", "marks"), rows)


def changes() -> str:
    """Writes the claims on trained models whose verdict another rule or another comparison has turned."""
    changed = [claim for claim in claims() if claim.before and claim.before != claim.ruled]
    rows = [(c.paper, c.says, c.before, f"**{c.ruled}**", _reason(c)) for c in changed]
    return tables.plain_markdown(("paper", "claim", "before", "now", "why"), rows)


def marks() -> str:
    """Says what each mark means, and how many rows have it."""
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
    """Counts the rows of each verdict in each class that has any."""
    said = [(claim.evidence or "none", claim.verdict.partition(" within")[0]) for claim in claims()]
    words = sorted({word for _, word in said})
    kinds = [kind for kind in (*CLASSES[:-1], "none") if kind in dict(said)]
    rows = [(kind, *(str(said.count((kind, word)) or "–") for word in words)) for kind in kinds]
    return tables.plain_markdown(("class", *words), rows)


def evidence() -> str:
    """Lists the files behind the keys of the ledger, with the command that makes or runs each."""
    tests = dict.fromkeys(test.partition("::")[0] for claim in claims() for test in (*claim.shown, *claim.refuted))
    rows = [(Path(file).stem, f"`{file}`", f"`python -m pytest {file}`") for file in tests]
    for name in dict.fromkeys(claim.ratio["file"] for claim in claims() if claim.ratio):
        file = f"benchmarks/results/{name}_cpu.json"
        rows.append((f"{name}_cpu", f"`{file}`", f"`{json.loads((runs.ROOT / file).read_text())['command']}`"))
    return tables.plain_markdown(("key", "file", "command"), rows)


def _cells(claim: Claim) -> tuple[str, ...]:
    cells = [cell.replace("|", "\\|") for cell in _plain_cells(claim)]
    cells[TITLES.index("verdict")] = f"**{claim.verdict}**"
    return tuple(cells)


def _plain_cells(claim: Claim) -> tuple[str, ...]:
    words = (claim.place, claim.says, claim.printed, claim.evidence or "–", claim.verdict, ", ".join(claim.marks))
    return (*words, claim.measured, claim.grounds, claim.note)


def _claimed(row: Comparison, claim: Claim | None) -> Comparison:
    """Says of a comparison what the ledger claims of it: a direction, another kind of claim, or an amount."""
    if claim is None or not claim.amount:
        return dataclasses.replace(row, claim=claim.claimed or row.claim if claim else row.claim, effect=0.0)
    return dataclasses.replace(row, claim="as much", effect=claim.amount)


def _measured_by(made: Declaration, metric: str, split: str) -> Declaration:
    if metric in ("", made.metric) and split == "test":
        return made
    family = [dataclasses.replace(row, effect=0.0) for row in made.family]
    return dataclasses.replace(made, metric=metric or made.metric, family=family)


def _judged_by(study: str, families: Sequence[Declaration], split: str) -> dict[str, Verdict]:
    found = kept.find(study)
    judged = [verdict for made in families for verdict in verdicts.judge(found, made, split)] if found else []
    return {verdict.comparison.name: verdict for verdict in judged}


def _some_difference(words: str) -> str:
    """Says of a comparison of which nothing is claimed that its settings differ, whichever is better."""
    return HOLDS if words in (BETTER, WORSE) else words


def _reason(claim: Claim) -> str:
    if claim.was:
        return f"another comparison judges it: [{claim.study}](studies/{claim.study}.md), *{claim.comparison}*"
    if claim.claimed:
        return "to lose nothing has one side"
    return "as much has a limit of its own" if claim.amount else "a direction does not need the paper's amount"


def _with_effects(answer: str) -> str:
    """Writes the difference of a comparison in place of each `{STUDY: COMPARISON}`."""

    def effect(match: re.Match[str]) -> str:
        study, name = match.groups()
        metric = metrics.find(declared(study).metric)
        return metric.with_unit(str(judged(study)[name].number(metric)))

    return EFFECT.sub(effect, answer)


def _marks_of_answer(claim: Claim) -> str:
    """Gathers the marks of the claims of directions that are about the differences in an answer."""
    plain = [c for c in claims() if c.split == "test" and not (c.metric or c.curve or c.amount)]
    found = {mark for c in plain if (c.study, c.comparison) in EFFECT.findall(claim.answer) for mark in c.marks}
    return ", ".join(mark for mark in MARKS if mark in found)


@functools.cache
def _tuned(study: str) -> Mapping[str, Any]:
    return kept.read(study).sweeps[0]["tune"]


def _at_an_end(study: str, setting: str) -> bool:
    """Tells whether the rate that a setting chose is the least or the greatest that it tried."""
    cell = kept.read(study).sweeps[0].get("cells", {}).get(setting, {})
    if "tried" not in cell:
        return False
    tried, chosen = sorted(map(float, cell["tried"])), float(next(iter(cell["chosen"].values())))
    return chosen in (tried[0], tried[-1])


@functools.cache
def _late_change(study: str) -> float:
    """Measures the greatest mean change of a setting's validation metric in the last fifth; NaN where it has none."""
    metric = declared(study).metric
    changes = [np.mean([run.late_change(metric) for run in group.runs]) for group in kept.find(study).groups]
    return float(np.max(np.abs(changes)))


def _effect_of_trial(verdict: Verdict) -> str:
    if not len(verdict.differences):
        return ""
    said = f"{verdict.number(trials.ACCURACY)} points of accuracy, {len(verdict.differences)} seeds"
    return said + (f"; finds {trials.finds(verdict)}" if verdict.words == UNDECIDED else "")


@functools.cache
def _paper(name: str) -> dict[str, Any]:
    return tomllib.loads((CLAIMS / f"{name}.toml").read_text(encoding="utf-8"))


def _at(data: Any, path: Sequence[Any]) -> Any:
    """Looks up what stands at a place, each step of which is a key or a mapping that the row of a list must contain."""
    for part in path:
        if isinstance(part, str):
            data = data[part]
        else:
            (data,) = [row for row in data if part.items() <= row.items()]
    return data


def _come_to(text: str, printed: str) -> str:
    """Writes a sum with the digits of what is printed for it, in per cent where that is; > 0 takes three digits."""
    if printed == "> 0":
        return f"{value_of(text):.3g}"
    percent = printed.endswith("%")
    digits = len(re.sub(r"[ %]", "", printed).partition(".")[2])
    return f"{value_of(text) * (100 if percent else 1):.{digits}f}" + " %" * percent


def _value(node: ast.expr) -> float:
    if isinstance(node, ast.Constant):
        return node.value
    return OPERATORS[type(node.op)](_value(node.left), _value(node.right))
