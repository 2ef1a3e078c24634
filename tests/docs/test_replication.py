"""The page on the papers' claims: each has a row, each row a verdict, each verdict evidence that is there."""

import ast
import itertools
import operator
import re
import shlex
from typing import NamedTuple

import pytest

from analysis import report, tables
from analysis import runs as finished
from analysis.metrics import METRICS
from studies import replication
from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.docs.reader import look_up

PAGE = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
KEPT = ROOT / "docs/replication"
VERDICTS = ("holds", "holds in part", "does not hold", "no difference can be claimed", "not tested")
STUDIES = {*replication.STUDIES, "inference"}
# Tables, and figures that show results, as the papers number them; Wikipedia has equations and one matrix.
CLAIMED = {
    "DiGiugno": [f"Table {i}" for i in range(1, 9)] + ["Fig. 1", "Fig. 9", "Fig. 10", "Fig. 11"],
    "Wikipedia": ["Alignment matrix", "Equivariant", "Masked", "Flash attention", "Bahdanau", "Luong", "Legend"],
    "Sanger": ["Fig. 1", "Fig. 2a", "Fig. 2b", "Fig. 3", "Eq. 3", "129 s for 174 s"],
    "Zhang": ["Table 1", "Table 2", "Table 3", "Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4"],
    "Hosseini": [f"Table {i}" for i in range(1, 11)] + ["Fig. 2", "Fig. 3", "Fig. 4", "Eq. 24"]
    + [f"Remark {i}" for i in (1, 2, 3)],
}  # fmt: skip
CITED = re.compile(r"\[(\w+)\]\(#(\w+)\)")
SUM = re.compile(r"`([-\d.()+−·/ ]+) = ([\d.]+) ?(%?)`")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Row(NamedTuple):
    claim: str
    figures: str
    verdict: str
    evidence: str


def rows_below(heading, text=PAGE):
    """The cells of the tables of a section."""
    section = re.split(rf"^## {heading}\b", text, flags=re.MULTILINE)[1].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))] for line in lines]


def claims(text=PAGE):
    return [Row(*cells) for paper in CLAIMED for cells in rows_below(paper, text)]


def wrong_sums(text):
    """Sums that do not come to what stands behind them, to its last digit."""
    for expression, printed, percent in SUM.findall(text):
        digits = len(printed.partition(".")[2])
        tree = ast.parse(expression.replace("−", "-").replace("·", "*").strip(), mode="eval").body
        if f"{value(tree) * (100 if percent else 1):.{digits}f}" != printed:
            yield expression


def value(node):
    return (
        node.value if isinstance(node, ast.Constant) else OPERATORS[type(node.op)](value(node.left), value(node.right))
    )


def conclusions():
    """What a study's tables, and the reports that the page names, say of differences."""
    told = {name: replication.text(name, KEPT / f"{name}.json") for name in replication.STUDIES}
    for name, given in re.findall(r"`python -m analysis\.report docs/replication/(\w+)\.json\s([^`]+)`", PAGE):
        flags = report.main.parser().parse_args(["-", *shlex.split(given)])
        made = report.report(finished.find([KEPT / f"{name}.json"]), flags.baseline, flags.metric.split(","))
        told[name] += tables.markdown(made.differences)
    return told


def wrong_figures(text):
    """Differences and p-values that a row has of studies, and their tables have not."""
    told = conclusions()
    for row in claims(text):
        known = "".join(told.get(key, "") for key, _ in CITED.findall(row.evidence))
        figures = [f"{mean} ± {width}" for mean, width in re.findall(r"(\d[\d.]*) ± ([\d.]*\d)", row.evidence)]
        listed = itertools.chain(*(text.split(", ") for text in re.findall(r"p = ([\d., ]*\d)", row.evidence)))
        figures += [f"p = {p}" for p in listed]
        yield from (figure for figure in figures if not re.search(rf"{re.escape(figure)}(?!\d)", known))


@pytest.mark.parametrize("paper", CLAIMED)
def test_every_table_and_result_of_a_paper_has_a_row_with_a_verdict_and_evidence(paper):
    rows = [Row(*cells) for cells in rows_below(paper)]
    named = "\n".join(row.claim + " " + row.figures for row in rows)
    assert [name for name in CLAIMED[paper] if not re.search(rf"{re.escape(name)}(?!\w)", named)] == []
    assert {row.verdict for row in rows} <= {*VERDICTS}
    assert [row.claim for row in rows if row.verdict != "not tested" and not CITED.search(row.evidence)] == []


def test_citations_lead_to_evidence_whose_files_and_programs_exist():
    evidence = {key: (files, commands) for key, files, commands, _ in rows_below("Evidence")}
    pairs = {pair for pair in CITED.findall(PAGE) if pair[0] != "evidence" and pair[1] != "studies"}
    assert {key for key, _ in pairs} == evidence.keys()
    assert {(key, place) for key, place in pairs if place != (key if key in STUDIES else "evidence")} == set()
    for files, commands in evidence.values():
        assert all((ROOT / file).is_file() for file in re.findall(r"`([^`]+)`", files))
        for command in re.findall(r"`([^`]+)`", commands):
            look_up(*blocks(f"```sh\n{command}\n```"))
            assert {*command.partition(" --only ")[2].split()} <= {*replication.STUDIES}


def test_sums_differences_and_p_values_are_those_of_the_files():
    assert len(SUM.findall(PAGE)) > 15
    assert list(wrong_sums(PAGE)) == []
    assert list(wrong_figures(PAGE)) == []
    assert list(wrong_sums(PAGE.replace("= 16.47 %", "= 12.5 %"))) != []
    assert list(wrong_figures(PAGE.replace("6.34 ± 1.10", "6.43 ± 1.10"))) == ["6.43 ± 1.10"]
    assert list(wrong_figures(PAGE.replace("(p = 0.028, 0.0056,", "(p = 0.028, 0.056,"))) == ["p = 0.056"]


@pytest.mark.parametrize(
    ("study", "mechanism", "metric", "ahead", "behind"),
    [
        ("wikitext2_gpt", "neural", "perplexity", 18, 0),
        ("cifar100_neural", "neural", "accuracy", 0, 6),
        ("anki_gaussian", "gaussian", "accuracy", 0, 18),
        ("anki_gaussian", "gaussian", "loss", 0, 18),
        ("wikitext2_mlm", "mlp_roberta", "accuracy", 6, 6),
        ("multi30k", "mlp_marian", "bleu", 2, 4),
        ("multi30k", "mlp_kv", "bleu", 6, 0),
    ],
)
def test_evaluations_ahead_and_behind_are_as_many_as_the_page_says(study, mechanism, metric, ahead, behind):
    """Of each seed against the same seed with dot products; the rows of Figs. 1, 2a, 2b, 9 and 11 count them."""
    groups = finished.find([KEPT / f"{study}.json"]).groups
    baseline = {run.seed: run for group in groups if group.label.startswith("dot_product") for run in group.runs}
    better = []
    for run in (run for group in groups if group.label.startswith(mechanism) for run in group.runs):
        for (step, _, reached), (same, _, against) in zip(
            run.curve(metric), baseline[run.seed].curve(metric), strict=True
        ):
            assert step == same
            better.append((reached < against) == METRICS[metric].lower)
    assert (sum(better), len(better) - sum(better)) == (ahead, behind)
