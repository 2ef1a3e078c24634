"""The page on the papers' claims: each has a row, each row leads to evidence that is there, and its sums are right."""

import re

import pytest

from studies import kept, ledger, numbers
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
SUM = re.compile(r"`([-\d.()+−·/ ]+) = ([\d.]+(?: %)?)`")


def wrong_sums(text):
    """Yields the sums that differ from their printed value in its last digit."""
    for expression, printed in SUM.findall(text):
        if not numbers.comes_to(expression.replace("−", "-").replace("·", "*"), printed):
            yield expression


@pytest.mark.parametrize("paper", CLAIMED)
def test_every_table_and_result_of_a_paper_has_a_row(paper):
    named = "\n".join(f"{row.place} {row.says} {row.printed}" for row in ledger.claims() if row.paper == paper)
    assert [name for name in CLAIMED[paper] if not re.search(rf"{re.escape(name)}(?!\w)", named)] == []


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
        assert ("The comparisons were **chosen afterwards**" in page) == (name not in DECLARED)
        for picture in (name, f"{name}_effects") if kept.find(name) else ():
            assert f"(../replication/{picture}.svg)" in page
            assert (ROOT / f"docs/replication/{picture}.svg").is_file()


def test_sums_are_right_to_their_last_digit():
    page = "".join(PAGES.values())
    assert len(SUM.findall(page)) > 15
    assert list(wrong_sums(page)) == []
    assert list(wrong_sums(page.replace("= 57.7 %", "= 12.5 %"))) != []
