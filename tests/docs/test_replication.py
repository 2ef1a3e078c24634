"""The page on the papers' claims: each has a row, each row leads to evidence that is there, and its sums are right."""

import ast
import operator
import re

import pytest

from studies import kept, ledger
from studies.declared import ALL, DECLARED
from tests.conftest import ROOT
from tests.docs.pages import blocks
from tests.docs.reader import look_up

NAMES = ("replication", "ledger", "studies", "faults")
FILES = [*(ROOT / f"docs/{name}.md" for name in NAMES), *(ROOT / "docs/studies").glob("*.md")]
PAGES = {
    file.relative_to(ROOT / "docs").as_posix().removesuffix(".md"): file.read_text(encoding="utf-8")
    for file in sorted(FILES)
}
WORDS = {"replication": 1200, "studies": 1500, "faults": 1000}  # written by hand, in a page; 500 in others
# Tables, and figures that show results, as the papers number them; Wikipedia has equations and one matrix.
CLAIMED = {
    "DiGiugno": [f"Table {i}" for i in range(1, 9)] + ["Fig. 1", "Fig. 9", "Fig. 10", "Fig. 11"],
    "Wikipedia": ["Alignment matrix", "Equivariant", "Masked", "Flash attention", "Bahdanau", "Luong", "Legend"],
    "Sanger": ["Fig. 1", "Fig. 2a", "Fig. 2b", "Fig. 3", "Eq. 3", "129 s for 174 s"],
    "Zhang": ["Table 1", "Table 2", "Table 3", "Fig. 1", "Fig. 2", "Fig. 3", "Fig. 4"],
    "Hosseini": [f"Table {i}" for i in range(1, 11)] + ["Fig. 2", "Fig. 3", "Fig. 4", "Eq. 24"]
    + [f"Remark {i}" for i in (1, 2, 3)],
}  # fmt: skip
# What an outside audit missed.
MISSED = {
    "DiGiugno": ["low rank", "further linear layer", "hybrid"],
    "Wikipedia": ["Channel and spatial", "1 to 5", "fixed length", "favour", "hard ones", "Turing"],
    "Sanger": ["noise", "learned", "bypass", "IIR"],
    "Zhang": ["topology", "activations"],
    "Hosseini": ["all of the mechanisms", "for each head", "converge", "sliding window"],
}
CITED = re.compile(r"\[(\w+)\]\(#(\w+)\)")
SUM = re.compile(r"`([-\d.()+−·/ ]+) = ([\d.]+) ?(%?)`")
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def wrong_sums(text):
    """Yields the sums that differ from their printed value in its last digit."""
    for expression, printed, percent in SUM.findall(text):
        digits = len(printed.partition(".")[2])
        tree = ast.parse(expression.replace("−", "-").replace("·", "*").strip(), mode="eval").body
        if f"{value(tree) * (100 if percent else 1):.{digits}f}" != printed:
            yield expression


def value(node):
    return (
        node.value if isinstance(node, ast.Constant) else OPERATORS[type(node.op)](value(node.left), value(node.right))
    )


@pytest.mark.parametrize("paper", CLAIMED)
def test_every_table_and_result_of_a_paper_has_a_row(paper):
    named = "\n".join(f"{row.place} {row.says} {row.printed}" for row in ledger.claims() if row.paper == paper)
    assert [name for name in CLAIMED[paper] if not re.search(rf"{re.escape(name)}(?!\w)", named)] == []
    assert [name for name in MISSED[paper] if name not in named] == []


def test_citations_lead_to_studies_and_to_evidence_whose_programs_exist():
    page = PAGES["ledger"]
    keys = re.findall(r"^\| (\w+) \| `", page[page.index("## Evidence") :], re.MULTILINE)
    assert {place for _, place in CITED.findall(page)} <= {"evidence"}
    assert {key for key, _ in CITED.findall(page)} - {*keys, "below"} == set()
    for command in re.findall(r"`(python -m [^`]+)` \|", page):
        shown = re.sub(r" --plot=\S+", "", command)
        look_up(*blocks(f"```sh\n{shown}\n```"))


def test_every_study_has_its_place_and_every_kept_one_its_pictures():
    for name in ALL:
        page = PAGES[f"studies/{name}"]
        assert page.startswith(f"# {name}: ")
        assert f"- [{name}](studies/{name}.md): " in PAGES["studies"]
        for picture in (name, f"{name}_effects") if kept.find(name) else ():
            assert f"(../replication/{picture}.svg)" in page
            assert (ROOT / f"docs/replication/{picture}.svg").is_file()


def test_a_reader_of_verdicts_is_told_what_an_interval_leaves_out_and_what_was_chosen_afterwards():
    for name in ALL:
        page = PAGES[f"studies/{name}"]
        assert not kept.find(name) or "it leaves out the sampling of the test set" in page
        assert ("The comparisons were **chosen afterwards**" in page) == (name not in DECLARED)
    for name in ("ledger", "replication", "studies"):
        assert re.search(r"leaves?\s+out\s+the\s+sampling\s+of\s+the\s+test\s+set", PAGES[name]), name
        assert "afterwards" in PAGES[name]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short(name):
    """Only words written by hand count."""
    by_hand = re.sub(r"<!-- figures: .+? -->.*?<!-- end -->|```.*?```", "", PAGES[name], flags=re.DOTALL)
    assert len(by_hand.split()) <= WORDS.get(name, 500)


def test_sums_are_right_to_their_last_digit():
    page = "".join(PAGES.values())
    assert len(SUM.findall(page)) > 15
    assert list(wrong_sums(page)) == []
    assert list(wrong_sums(page.replace("= 57.7 %", "= 12.5 %"))) != []
