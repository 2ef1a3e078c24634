"""The page on the papers' claims: each has a row, each row a verdict, each verdict evidence that is there."""

import ast
import json
import operator
import re
import shlex
from typing import NamedTuple

import numpy as np
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
CODE = re.compile(r"`([^`]+)`")
CITED = re.compile(r"\[(\w+)\]\(#(\w+)\)")
BLOCK = re.compile(r"<!-- figures: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
SUM = re.compile(r"`([-\d.()+−·/ ]+) = ([\d.]+) ?(%?)`")


class Row(NamedTuple):
    paper: str
    claim: str
    figures: str
    verdict: str
    found: str

    @property
    def keys(self):
        return [key for key, _ in CITED.findall(self.found)]


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def rows_of(text):
    found = []
    for section in re.split(r"^## ", text, flags=re.MULTILINE):
        lines = [cells(line) for line in section.splitlines() if line.startswith("| ")]
        if (paper := section.partition(":")[0]) in CLAIMED:
            found += [Row(paper, *line) for line in lines[2:]]
    return found


def evidence_of(text):
    """From a key to its files and its commands."""
    section = text.split("\n## Evidence\n")[1].split("\n## ")[0]
    lines = [cells(line) for line in section.splitlines() if line.startswith("| ")][2:]
    assert len({line[0] for line in lines}) == len(lines)
    return {key: (CODE.findall(files), CODE.findall(commands)) for key, files, commands, _ in lines}


def without_files(text):
    """Keys whose file is not there."""
    return [key for key, (files, _) in evidence_of(text).items() if not all((ROOT / file).is_file() for file in files)]


def wrong_verdicts(text):
    wrong = [row.claim for row in rows_of(text) if row.verdict not in VERDICTS or not row.found]
    return wrong + [row.claim for row in rows_of(text) if row.verdict != "not tested" and not row.keys]


def wrong_keys(text):
    """Citations that lead nowhere, and evidence that nothing cites."""
    evidence, headings = evidence_of(text), set(re.findall(r"^### (\w+)$", text, re.MULTILINE))
    cited = [pair for pair in CITED.findall(text) if pair[0] != "evidence" and pair[1] != "studies"]
    wrong = [key for key, place in cited if key not in evidence or place != (key if key in STUDIES else "evidence")]
    wrong += [key for key in evidence if key not in {key for key, _ in cited}]
    return wrong + sorted(STUDIES ^ headings)


def wrong_commands(text):
    return [key for key, (_, commands) in evidence_of(text).items() if not commands or not all(map(runs, commands))]


def runs(command):
    """Whether there is such a program, which takes these flags, and what they name exists."""
    (block,) = blocks(f"```sh\n{command}\n```")
    after_only = command.partition(" --only ")[2].split()
    return look_up(block) == [] and set(after_only) <= set(replication.STUDIES)


def without_rows(text):
    """What the papers number and no claim names."""
    named = {
        paper: "\n".join(r.claim + " " + r.figures for r in rows_of(text) if r.paper == paper) for paper in CLAIMED
    }
    return [
        f"{p} {n}" for p, names in CLAIMED.items() for n in names if not re.search(rf"{re.escape(n)}(?!\w)", named[p])
    ]


def without_pictures(text, kept=KEPT):
    done = [name for name, study in replication.STUDIES.items() if study.picture and (kept / f"{name}.json").is_file()]
    return [name for name in done if f"(replication/{name}.png)" not in text or not (kept / f"{name}.png").is_file()]


def conclusions(text):
    """What a study's tables, and the reports that the page names, say of differences."""
    told = dict(BLOCK.findall(text))
    for name, given in re.findall(r"`python -m analysis\.report docs/replication/(\w+)\.json\s([^`]+)`", text):
        flags = report.parser().parse_args(["-", *shlex.split(given)])
        made = report.report(finished.find([KEPT / f"{name}.json"]), flags.baseline, flags.metric.split(","))
        told[name] += tables.markdown(made.differences)
    return told


def wrong_figures(text):
    """Differences and p-values that a row has of studies, and their tables have not."""
    told, wrong = conclusions(text), []
    for row in rows_of(text):
        found = "".join(told.get(key, "") for key in row.keys)
        figures = [f"{mean} ± {width}" for mean, width in re.findall(r"(\d[\d.]*) ± ([\d.]*\d)", row.found)]
        figures += [f"p = {p}" for each in re.findall(r"p = ([\d., ]*\d)", row.found) for p in each.split(", ")]
        wrong += [figure for figure in figures if not re.search(rf"{re.escape(figure)}(?!\d)", found)]
    return wrong


def own_cells(file, metric):
    """Means and standard deviations of a test metric, of each setting's seeds, from the file alone."""
    groups = {}
    for run in json.loads(file.read_text())["runs"]:
        setting = json.dumps(
            {field: value for field, value in run["config"].items() if field != "seed"}, sort_keys=True
        )
        groups.setdefault(setting, []).append(run["results"][0]["best"]["test"][metric] * METRICS[metric].scale)
    digits = METRICS[metric].digits
    return sorted(f"{np.mean(each):,.{digits}f} ± {np.std(each, ddof=1):,.{digits}f}" for each in groups.values())


def shown_cells(block, metric):
    """The same, as a table shows them, without ranks."""
    head, _, *lines = [cells(line) for line in block.split("\n\n")[1].splitlines()]
    column = head.index(f"test {METRICS[metric].title}")
    return sorted(re.sub(r" \(\d+\)$", "", line[column]) for line in lines)


def value(expression):
    """Of a sum of numbers."""
    kinds = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}

    def of(node):
        return node.value if isinstance(node, ast.Constant) else kinds[type(node.op)](of(node.left), of(node.right))

    return of(ast.parse(expression.replace("−", "-").replace("·", "*").strip(), mode="eval").body)


def wrong_sums(text):
    """Sums that do not come to what stands behind them, to its last digit."""
    wrong = []
    for expression, printed, percent in SUM.findall(text):
        digits = len(printed.partition(".")[2])
        if f"{value(expression) * (100 if percent else 1):.{digits}f}" != printed:
            wrong.append(expression)
    return wrong


CHECKS = (
    wrong_verdicts, wrong_keys, wrong_commands, without_rows, without_files, wrong_sums,
    without_pictures, wrong_figures,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_the_page(check):
    assert check(PAGE) == []


def test_there_are_rows():
    assert len(rows_of(PAGE)) > 60
    assert len(SUM.findall(PAGE)) > 15


DOCTORED = [
    (wrong_verdicts, "| not tested |", "| untested |"),
    (wrong_keys, "[counts](#evidence)", "[count](#evidence)"),
    (wrong_commands, "`python -m analysis.flops --out", "`python -m analysis.flop --out"),
    (wrong_commands, "--only mnist` | MNIST", "--only minst` | MNIST"),
    (without_rows, "| Fig. 10: ", "| Figure 10: "),
    (without_files, "| papers | `tests/docs/test_papers.py`", "| papers | `tests/docs/test_paper.py`"),
    (wrong_sums, "= 16.47 %", "= 12.5 %"),
    (wrong_figures, "6.34 ± 1.10", "6.43 ± 1.10"),
    (wrong_figures, "(p = 0.028, 0.0056,", "(p = 0.028, 0.056,"),
]


@pytest.mark.parametrize(("check", "before", "after"), DOCTORED)
def test_a_doctored_page_is_found(check, before, after):
    assert before in PAGE
    assert check(PAGE.replace(before, after, 1)) != []


@pytest.mark.parametrize("name", replication.STUDIES)
def test_tables_of_the_page_show_what_the_files_have(name):
    block = dict(BLOCK.findall(PAGE))[name].strip()
    for metric in replication.STUDIES[name].metrics:
        assert shown_cells(block, metric) == own_cells(KEPT / f"{name}.json", metric)


@pytest.mark.parametrize(
    ("study", "mechanism", "metric", "ahead", "behind", "said"),
    [
        ("wikitext2_gpt", "neural", "perplexity", 18, 0, "ahead in both evaluations, after 250 and"),
        ("cifar100_neural", "neural", "accuracy", 0, 6, "with each of 3 seeds it is behind in both evaluations"),
        ("anki_gaussian", "gaussian", "accuracy", 0, 18, "ahead in all six evaluations, and not"),
        ("anki_gaussian", "gaussian", "loss", 0, 18, "lower in all six evaluations with every seed"),
        ("wikitext2_mlm", "mlp_roberta", "accuracy", 6, 6, "of each of 3 seeds it is ahead in 6 and behind in 6"),
        ("multi30k", "mlp_marian", "bleu", 2, 4, "the published code is ahead in 2 and behind in 4"),
        ("multi30k", "mlp_kv", "bleu", 6, 0, "`mlp_kv` is ahead in all six"),
    ],
)
def test_evaluations_ahead_and_behind_are_counted_in_the_records(study, mechanism, metric, ahead, behind, said):
    """Of each seed against the same seed with dot products."""
    groups = finished.find([KEPT / f"{study}.json"]).groups
    baseline = {run.seed: run for each in groups if each.label.startswith("dot_product") for run in each.runs}
    better = []
    for run in (run for each in groups if each.label.startswith(mechanism) for run in each.runs):
        for (step, _, value), (same, _, against) in zip(
            run.curve(metric), baseline[run.seed].curve(metric), strict=True
        ):
            assert step == same
            better.append((value < against) == METRICS[metric].lower)
    assert (sum(better), len(better) - sum(better)) == (ahead, behind)
    assert any(study in row.keys and said in row.found for row in rows_of(PAGE))
