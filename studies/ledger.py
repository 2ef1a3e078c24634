"""The ledger: claims of five papers and known outcomes of trials, whose verdicts follow by rule from what they name.

`claims/*.toml` has the claims. Each names at most one ground:

- `study` and `comparison`: what `analysis.verdicts` says of it; with `curve` at every evaluation together, with `split`
  of training data. A comparison of which nothing is declared claims some difference: it *holds* where settings are
  *better* or *worse*;
- `shown`: tests that prove it, so it *holds*; `refuted`: tests that prove the opposite, so it *does not hold*;
- `sums`: the paper's own figures. It *holds* where each comes to what is printed, to its last digit, or is above 0;
- `trial`, `spec` and `other`: of the kept table of trials, at the trial's greatest size. It claims that the mechanism
  `spec` is `claimed` to be better than `other`, or worse, or equal within 5 points; all of these are one family;
- `ratio`: of a benchmark. A claim that it is `above` or `below` 1 *holds* where it is so in every round, *does not
  hold* where it is so in none, and is *undecided* otherwise.

A claim without a ground is *not tested*. So is one of the class *another question*, whatever was measured: other data,
a training of another kind, or the time and memory of another machine.
"""

import ast
import dataclasses
import functools
import json
import operator
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import metrics, tables, trials, verdicts
from analysis.verdicts import BETTER, DOES_NOT, HOLDS, NOT_TESTED, UNDECIDED, WORSE, Verdict
from attention.errors import UsageError, unknown
from models.files import read_json
from studies import kept, runs
from studies.definitions import DECLARATIONS
from train.grids import declaration
from train.grids.declaration import Comparison, Declaration
from train.grids.trial_table import TrialTable

CLAIMS = Path(__file__).parent / "claims"
PAPERS = ("digiugno", "wikipedia", "sanger", "zhang", "hosseini", "literature")
TRIALS = Path(__file__).parent.parent / "configs/trials.json"
CLASSES = ("exact", "full size", "reduced", "another question", "")
ANOTHER = "another question"
SPLITS = ("test", "train")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
TITLES = ("where", "claim", "the paper's figures", "class", "verdict", "measured", "by", "remarks")


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says, and the ground on which it is judged.

    Attributes:
      paper: Name of the first author.
      place: Where it says so.
      says: What it says, in a plain sentence.
      printed: The paper's figures.
      kind: Class of the evidence, of `CLASSES`; '' is none.
      study: A study of `studies.replication`.
      comparison: The name of one that the study's declaration has.
      metric: The metric, in place of the one that is declared.
      split: The data that it is about, of `SPLITS`.
      curve: Whether the claim is about all evaluations.
      shown: Tests that prove it, as pytest names them.
      refuted: Tests that prove the opposite.
      sums: Pairs of a sum and what is printed for it.
      ratio: `file` of `benchmarks/results`, `at` what place in it, and perhaps `over` what other place.
      claimed: What is claimed of the ratio: `above` or `below` 1; of the trial: `better`, `worse` or `equal`; '' is
        nothing.
      trial: A trial of `configs/trials.json`.
      spec: A mechanism.
      other: What it is compared with, a mechanism or `chance`.
      headline: Whether it stands in the table at the top.
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
    shown: Sequence[str] = ()
    refuted: Sequence[str] = ()
    sums: Sequence[Sequence[str]] = ()
    ratio: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    claimed: str = ""
    trial: str = ""
    spec: str = ""
    other: str = ""
    headline: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        """Raises a UsageError where the class or the split is unknown, or there are several grounds."""
        if self.kind not in CLASSES:
            raise unknown(f"class of the claim {self.says!r}", self.kind, CLASSES[:-1])
        if self.split not in SPLITS:
            raise unknown(f"split of the claim {self.says!r}", self.split, SPLITS)
        if sum(map(bool, (self.study, self.shown, self.refuted, self.sums, self.ratio, self.trial))) > 1:
            raise UsageError(f"The claim {self.says!r} has several grounds; give it one, or make two claims of it.")

    @property
    def verdict(self) -> str:
        """What follows from the ground by rule."""
        if self.kind == ANOTHER:
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
        studied = f"[{self.study}](#{self.study})" if self.study else ""
        measured = f"[{self.ratio['file']}_cpu](#evidence)" if self.ratio else ""
        sums = "its own figures" if self.sums else "[trials](trials.md)" if self.trial else ""
        return " ".join([*(f"[{name}](#evidence)" for name in tests), studied, measured, sums]).strip() or "–"

    def _judged(self) -> Verdict | None:
        return judged(self.study, self.metric, self.split).get(self.comparison) if self.study else None

    def _of_study(self) -> str:
        verdict = self._judged()
        if verdict is None:
            return NOT_TESTED
        if not self.curve:
            return HOLDS if verdict.words in (BETTER, WORSE) else verdict.words
        return verdicts.judge_curve(kept.find(self.study), declared(self.study, self.metric), verdict.comparison)

    def _of_rounds(self) -> str:
        if not self.claimed:
            return NOT_TESTED
        _, least, greatest = rounds(self.ratio)
        so = [value > 1 if self.claimed == "above" else value < 1 for value in (least, greatest)]
        return HOLDS if all(so) else UNDECIDED if any(so) else DOES_NOT

    def _effect(self, judged: Verdict) -> str:
        metric = metrics.find(declared(self.study, self.metric).metric)
        number, seeds = judged.number(metric), len(judged.differences)
        title = "training " * (self.split == "train") + metric.title.removesuffix(", %")
        of = title if metric.unit and title.startswith(metric.unit) else f"{metric.unit} of {title}".strip()
        said = f"{number} {of}, {seeds} seeds"
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


def declared(study: str, metric: str = "", split: str = "test") -> Declaration:
    """Declares what a study compares; in another metric, or on other data, without the declared effects."""
    made = declaration.read(DECLARATIONS / f"{study}.json")
    if metric in ("", made.metric) and split == "test":
        return made
    family = [dataclasses.replace(row, effect=0.0) for row in made.family]
    return dataclasses.replace(made, metric=metric or made.metric, family=family)


@functools.cache
def judged(study: str, metric: str = "", split: str = "test") -> dict[str, Verdict]:
    """Judges what a study compares, by name; empty where no run is kept."""
    found = kept.find(study)
    rows = verdicts.judge(found, declared(study, metric, split), split) if found else []
    return {verdict.comparison.name: verdict for verdict in rows}


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


def in_short() -> str:
    """Writes the rows that stand at the top."""
    rows = [
        (c.paper, f"{c.says} ({c.place})", f"**{c.verdict}**", _escaped(c.measured), c.kind or "–")
        for c in claims()
        if c.headline
    ]
    return tables.plain_markdown(("paper", "claim", "verdict", "effect with interval, measured here", "class"), rows)


def summary() -> str:
    """Says in words how many claims have which verdict, and which of those on trained models hold."""
    said = [claim.verdict.partition(" within")[0] for claim in claims()]
    words = {HOLDS: "hold", DOES_NOT: "do not hold", "equal": "are equal within a margin", UNDECIDED: "are undecided"}
    numbers = ", ".join(f"{said.count(verdict)} {text}" for verdict, text in words.items())
    trained = [claim for claim in claims() if claim.study]
    held = "; ".join(f"{claim.says.rstrip('.')} ({claim.paper})" for claim in trained if claim.verdict == HOLDS)
    exact = sum(claim.verdict == HOLDS and claim.kind == "exact" for claim in claims())
    return (
        f"{len(said)} claims below, {numbers}, and {said.count(NOT_TESTED)} were not tested. Algebra, counts and "
        f"the papers' own figures decide {exact} of those that hold. Of the {len(trained)} on trained models these "
        f"hold: {held}."
    )


def counts() -> str:
    """Counts the rows of each verdict in each class."""
    said = [(claim.kind or "none", claim.verdict.partition(" within")[0]) for claim in claims()]
    words = list(dict.fromkeys(word for _, word in sorted(said, key=lambda row: row[1])))
    rows = [(kind, *(said.count((kind, word)) or "–" for word in words)) for kind in (*CLASSES[:-1], "none")]
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
    words = (claim.place, claim.says, claim.printed, claim.kind or "–", f"**{claim.verdict}**", claim.measured)
    return tuple(map(_escaped, (*words, claim.grounds, claim.note)))


def _effect_of_trial(verdict: Verdict) -> str:
    if not len(verdict.differences):
        return ""
    said = f"{verdict.number(trials.ACCURACY)} points of accuracy, {len(verdict.differences)} seeds"
    return said + (f"; finds {trials.finds(verdict)}" if verdict.words == UNDECIDED else "")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


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
