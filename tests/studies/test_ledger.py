"""The ledger: every claim has a row, and every verdict on the page follows from a file by rule.

The verdicts on trained models are derived here once more, from the JSON and the rule as the page states it.
"""

import functools
import json
import re

import numpy as np
import pytest
from scipy import stats

from attention import UsageError
from studies import kept, ledger
from studies.definitions import DECLARATIONS
from studies.ledger import Claim
from studies.replication import ALL
from tests.conftest import ROOT

PAGE = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
LOWER = ("loss", "perplexity")
UNITS = {"accuracy": (100, " points", 2), "bleu": (1, " BLEU", 2), "loss": (1, "", 4)}


def values(study, metric):
    """The values of a study's seeds by the folder of their setting, from its JSON alone."""
    cells = {}
    whole = ROOT / f"docs/replication/{study}.json"
    files = [whole] if whole.is_file() else sorted(whole.with_suffix("").glob("*/seed*.json"))
    for run in [run for file in files for run in json.loads(file.read_text())["runs"]]:
        cell = run["path"].split("/")[-2]
        cells.setdefault(cell, []).append(run["results"][0]["best"]["test"][metric])
    return {cell: np.array(seeds) for cell, seeds in cells.items()}


def tails(gain, value):
    """The p-values of a mean above and below a value, of Student's t."""
    t = (gain.mean() - value) / (gain.std(ddof=1) / np.sqrt(len(gain)))
    return stats.t.sf(t, len(gain) - 1), stats.t.cdf(t, len(gain) - 1)


def sayings(row, gain, margin, metric):
    """What may be said of one comparison with its p-value, in order."""
    claim, effect = row.get("claim", ""), row.get("effect", 0)
    (above, _), (_, below) = tails(gain, margin), tails(gain, -margin)
    scale, unit, digits = UNITS[metric]
    equal = (f"equal within {scale * margin:.{digits}f}{unit}", max(tails(gain, -margin)[0], tails(gain, margin)[1]))
    if claim == "equal":
        return [equal, ("does not hold", 2 * min(above, below))]
    return [("holds", 2 * above), equal, ("does not hold", 2 * tails(gain, effect or margin)[1])]


@functools.cache
def derived(study, metric=""):
    """The verdicts of a study's family, with Holm's method step by step."""
    declared = json.loads((DECLARATIONS / f"{study}.json").read_text())
    metric = metric or declared["metric"]
    cells, said = values(study, metric), {}
    for row in declared["family"]:
        pairs = zip(row["settings"], row["baselines"], strict=True)
        gain = np.mean([cells[setting] - cells[baseline] for setting, baseline in pairs], axis=0)
        sign = (-1 if metric in LOWER else 1) * (-1 if row.get("claim") == "worse" else 1)
        said[row["name"]] = sayings(row, sign * gain, declared["margin"], metric)
    words, left, open_ = dict.fromkeys(said, "undecided"), len(said), True
    for name in sorted(said, key=lambda name: min(p for _, p in said[name])):
        allowed = [word for word, p in said[name] if p * left <= 0.05] if open_ else []
        open_, left = bool(allowed), left - 1
        words[name] = allowed[0] if allowed else "undecided"
    return words


def rows():
    """The cells of the ledger's rows on the page."""
    lines = PAGE[PAGE.index("## Ledger") : PAGE.index("## Evidence")].splitlines()
    split = [re.split(r"(?<!\\)\|", line.strip("| ")) for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in cells] for cells in split if cells[0].strip() not in ("where", "---")]


def test_the_page_has_a_row_for_every_claim_with_the_verdict_that_follows():
    follow = [(claim.place, claim.says, f"**{claim.verdict}**") for claim in ledger.claims()]
    assert [(place, says, verdict) for place, says, _, _, verdict, *_ in rows()] == follow
    assert len(follow) > 140


@pytest.mark.parametrize(
    "claim",
    [claim for claim in ledger.claims() if claim.study and not claim.curve],
    ids=lambda claim: f"{claim.study} {claim.comparison}",
)
def test_verdicts_on_trained_models_follow_from_their_json(claim):
    if not (ROOT / f"docs/replication/{claim.study}.json").is_file():
        unfinished = sum(len(group.runs) for group in found.groups) if (found := kept.find(claim.study)) else 0
        if unfinished < ALL[claim.study].runs:
            pytest.skip("its runs are not all in")
    expected = derived(claim.study, claim.metric)[claim.comparison]
    assert claim.verdict == ("not tested" if claim.kind == "another question" else expected)
    assert ledger.judged(claim.study, claim.metric)[claim.comparison].words == expected


def test_all_other_verdicts_follow_from_their_grounds():
    for claim in ledger.claims():
        words = {"not tested"} if claim.kind == "another question" or not claim.grounds.strip("–") else set()
        words |= {"holds"} if claim.shown else {"does not hold"} if claim.refuted else set()
        if words and not claim.sums:
            assert {claim.verdict} == words, claim.says


@pytest.mark.parametrize(
    ("text", "printed", "so"),
    [
        ("(98.62 - 98.12) / 98.12", "0.51 %", True),
        ("(98.62 - 98.12) / 98.12", "0.5 %", True),
        ("(98.62 - 98.12) / 98.12", "0.52 %", False),
        ("500 * 10000", "5000000", True),
        ("34.31 - 35.49", "> 0", False),
        ("35.49 - 34.31", "> 0", True),
    ],
)
def test_sums_come_to_what_is_printed_to_its_last_digit(text, printed, so):
    assert ledger.comes_to(text, printed) == so


@pytest.mark.parametrize(
    ("least", "greatest", "claimed", "verdict"),
    [
        (0.8, 0.9, "below", "holds"),
        (0.8, 1.1, "below", "undecided"),
        (1.1, 1.2, "below", "does not hold"),
        (1.1, 1.2, "above", "holds"),
        (0.8, 0.9, "", "not tested"),
    ],
)
def test_a_ratio_is_judged_by_all_of_its_rounds(least, greatest, claimed, verdict, monkeypatch):
    monkeypatch.setattr(ledger, "rounds", lambda ratio: (1.0, least, greatest))
    assert Claim("A", "§1", "It is.", kind="full size", ratio={"file": "a"}, claimed=claimed).verdict == verdict


def test_a_claim_has_one_ground_and_a_known_class():
    with pytest.raises(UsageError, match="has several grounds"):
        Claim("A", "§1", "It is.", shown=["a::b"], refuted=["a::c"])
    with pytest.raises(UsageError, match="class"):
        Claim("A", "§1", "It is.", kind="exactly")


def test_measured_claims_have_a_class_and_the_tests_that_decide_exist():
    for claim in ledger.claims():
        assert bool(claim.kind) == (claim.grounds != "–"), claim.says
        for test in (*claim.shown, *claim.refuted):
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), test


def test_claims_about_whole_curves_follow_from_all_evaluations():
    words = {claim.place: claim.verdict for claim in ledger.claims() if claim.curve}
    assert words == {"Fig. 9": "undecided", "Fig. 11": "does not hold", "Fig. 2b": "holds"}
