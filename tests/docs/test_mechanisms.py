"""The pages about mechanisms leave none out."""

import re

import pytest

from docs.families import families
from models import cnn
from models.mechanisms import MECHANISMS
from tests.conftest import ROOT


def test_the_first_table_has_every_mechanism_once():
    named = [name for names in families().values() for name in names]
    assert sorted(named) == sorted([*MECHANISMS, *cnn.GATES.keys() - {"none"}])


@pytest.mark.parametrize("family", sorted({*families()} - {"channels"}))
def test_every_mechanism_has_a_section_on_its_family_s_page(family):
    page = (ROOT / f"docs/mechanisms/{family}.md").read_text(encoding="utf-8")
    sections = re.findall("`(\\w+)`", " ".join(re.findall("^## `.+", page, re.MULTILINE)))
    assert sorted(sections) == sorted(families()[family])
