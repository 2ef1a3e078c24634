"""The ledger: every claim has a row, and every verdict on the page follows from a file by rule.

The verdicts on trained models are derived here once more, from the JSON and the rule as the page states it.
"""

import dataclasses
import functools
import itertools
import json
import re

import numpy as np
import pytest
from scipy import stats

from analysis import verdicts
from analysis.verdicts import Verdict
from studies import kept, ledger, numbers
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from studies.ledger import Claim
from tests.conftest import ROOT
from train.grids import declaration
from train.grids.declaration import Comparison

PAGE = (ROOT / "docs/ledger.md").read_text(encoding="utf-8")
FRONT = (ROOT / "docs/replication.md").read_text(encoding="utf-8")
LOWER = ("loss", "perplexity")
BLEU = (1, " BLEU", 2)
UNITS = {"accuracy": (100, " points", 2), "bleu": BLEU, "bleu_to_48": BLEU, "loss": (1, "", 4)}


def values(study, number):
    """Reads numbers of a study's runs, by setting and seed, from its JSON alone."""
    cells = {}
    for run in json.loads((ROOT / f"docs/replication/{study}.json").read_text())["runs"]:
        *_, cell, seed = run["path"].split("/")
        cells.setdefault(cell, {})[seed] = number(run)
    return cells


def gain(row, cells, metric):
    """Computes how much better settings are than their baselines, by seed and averaged over blocks."""
    pairs = [(cells[a], cells[b]) for a, b in zip(row["settings"], row["baselines"], strict=True)]
    seeds = sorted(set.intersection(*(set(a) & set(b) for a, b in pairs)))
    sign = (-1 if metric in LOWER else 1) * (-1 if row.get("claim") == "worse" else 1)
    return sign * np.mean([[a[seed] - b[seed] for seed in seeds] for a, b in pairs], axis=0)


def tails(gain, value):
    """Computes the p-values of a mean above and below a value, by Student's t."""
    t = (gain.mean() - value) / (gain.std(ddof=1) / np.sqrt(len(gain)))
    return stats.t.sf(t, len(gain) - 1), stats.t.cdf(t, len(gain) - 1)


def sayings(row, gain, margin, metric):
    """Lists the possible verdicts on a comparison with their p-values, in order."""
    claim, effect = row.get("claim", ""), row.get("effect", 0)
    (above, _), (_, below) = tails(gain, margin), tails(gain, -margin)
    scale, unit, digits = UNITS[metric]
    equal = (f"equal within {scale * margin:.{digits}f}{unit}", max(tails(gain, -margin)[0], tails(gain, margin)[1]))
    if claim == "equal":
        return [equal, ("does not hold", 2 * min(above, below))]
    if not claim:
        return [equal, ("better", 2 * above), ("worse", 2 * below)]
    if claim in ("no worse", "as much"):
        least = -margin if claim == "no worse" else max(margin, effect - margin)
        return [("holds", 2 * tails(gain, least)[0]), ("does not hold", 2 * tails(gain, least)[1])]
    return [("holds", 2 * above), equal, ("does not hold", 2 * tails(gain, effect or margin)[1])]


def step_down(said):
    """Chooses the verdicts of a family, with Holm's method step by step."""
    words, left, open_ = dict.fromkeys(said, "undecided"), len(said), True
    for name in sorted(said, key=lambda name: min(p for _, p in said[name])):
        allowed = [word for word, p in said[name] if p * left <= 0.05] if open_ else []
        open_, left = bool(allowed), left - 1
        words[name] = allowed[0] if allowed else "undecided"
    return words


def families(study):
    """Reads what a study declared, and what was chosen afterwards, from their files."""
    files = [DECLARATIONS / f"{study}.json", DECLARATIONS / "afterwards" / f"{study}.json"]
    return [json.loads(file.read_text()) for file in files if file.is_file()]


def asked(study, metric, split, amounts):
    """Finds the ledger's claims about a study's comparisons, by name."""
    rows = [claim for claim in ledger.claims() if (claim.study, claim.metric, claim.split) == (study, metric, split)]
    return {claim.comparison: claim for claim in rows if bool(claim.amount) == amounts}


def put(row, claim):
    """Replaces a comparison's declared claim by the ledger's."""
    if claim is not None and claim.amount:
        return {**row, "claim": "as much", "effect": claim.amount}
    return {**row, "claim": claim.claimed or row.get("claim", "") if claim else row.get("claim", ""), "effect": 0}


def measured(run, metric, split):
    """Reads a metric of test data at the best step of a run, or of the last whole epoch of training up to it."""
    result = run["results"][0]
    if split == "test":
        return result["best"]["test"][metric]
    epochs = [line for line in run["record"] if line["split"] == "epoch" and line["step"] <= result["best_step"]]
    return max(epochs, key=lambda line: line["step"])[metric]


def of_family(study, rows, declared, metric, split):
    """Derives the verdicts of a family."""
    cells = values(study, lambda run: measured(run, metric, split))
    gains = {row["name"]: gain(row, cells, metric) for row in rows}
    return step_down({row["name"]: sayings(row, gains[row["name"]], declared["margin"], metric) for row in rows})


@functools.cache
def derived(study, metric="", split="test", amounts=False):
    """Derives the verdicts on the ledger's claims about a study, each family by itself."""
    claimed, words = asked(study, metric, split, amounts), {}
    for declared in families(study):
        compared = [put(row, claimed.get(row["name"])) for row in declared["family"]]
        words |= of_family(study, compared, declared, metric or declared["metric"], split)
    return words


@functools.cache
def derived_as_declared(study, metric="", split="test"):
    """Derives the verdicts on what a study declared; effects count only for the declared metric of test data."""
    declared = families(study)[0]
    there = (metric or declared["metric"], split) == (declared["metric"], "test")
    compared = [row if there else {**row, "effect": 0} for row in declared["family"]]
    return of_family(study, compared, declared, metric or declared["metric"], split)


def derived_along(study, comparison, metric=""):
    """Derives the verdict on being ahead at every evaluation, whatever is claimed of the end."""
    declared = families(study)[0]
    metric = metric or declared["metric"]
    (row,) = [{**row, "effect": 0} for row in declared["family"] if row["name"] == comparison]

    def curve(run):
        return np.array([line[metric] for line in run["record"] if line["split"] == "validation"])

    gains = gain(row, values(study, curve), metric)
    said = step_down({i: sayings(row, gains[:, i], declared["margin"], metric) for i in range(gains.shape[1])})
    words = set(said.values())
    return words.pop() if len(words) == 1 else "does not hold" if "does not hold" in words else "undecided"


def ruled(words):
    """Turns a verdict into that on a claim: if nothing was claimed, some difference was."""
    return "holds" if words in ("better", "worse") else words


def worded(words, kind):
    """Words a verdict as its class allows."""
    here = {"other data": "on these data", "reduced": "at this size", "reduced, other data": "at this size"}
    said = {"holds": "seen", "does not hold": "not seen"}
    if kind == "another question":
        return "not tested"
    return f"{said[words]} {here[kind]}" if kind in here and words in said else words


def test_the_page_and_the_csv_have_a_row_for_every_claim_with_the_verdict_that_follows(tmp_path):
    tables = [ledger.table(paper) for paper in ledger.PAPERS]
    assert [table for table in tables if table not in PAGE] == [], "run python -m docs.figures"
    ledger.write_csv(tmp_path / "ledger.csv")
    written = (tmp_path / "ledger.csv").read_text(encoding="utf-8")
    assert written == (ROOT / "docs/replication/ledger.csv").read_text(encoding="utf-8"), "run python -m docs.figures"
    assert "](" not in written
    assert sum(table.count("\n") - 1 for table in tables) == len(ledger.claims()) > 200


@pytest.mark.parametrize(
    "claim",
    [claim for claim in ledger.claims() if claim.study and not claim.curve],
    ids=lambda claim: f"{claim.study} {claim.comparison}",
)
def test_verdicts_on_trained_models_follow_from_their_json(claim):
    if len(kept.read(claim.study).entries) < ALL[claim.study].runs:
        pytest.skip("its runs are not all in")
    expected = derived(claim.study, claim.metric, claim.split, bool(claim.amount))[claim.comparison]
    assert claim.verdict == worded(ruled(expected), ALL[claim.study].kind)
    there = ledger.judged(claim.study, claim.metric, claim.split, bool(claim.amount))
    assert there[claim.comparison].words == expected


def test_verdicts_that_turned_are_listed_with_what_the_declared_rules_say():
    """The earlier verdict is on the comparison that judged the claim then, by the declared rule."""
    turned = []
    for claim in (claim for claim in ledger.claims() if claim.study and ALL[claim.study].kind != "another question"):
        study, comparison = claim.was or (claim.study, claim.comparison)
        declared = derived_as_declared(study, claim.metric, claim.split)
        before = derived_along(study, comparison, claim.metric) if claim.curve else ruled(declared.get(comparison, ""))
        assert claim.before == before, claim.says
        if before and before != claim.ruled:
            turned.append((claim.says, before, claim.ruled))
    listed = re.findall(
        r"^\| \w+ \| (.+?) \| (.+?) \| \*\*(.+?)\*\* \| ", FRONT[FRONT.index("turned these") :], re.MULTILINE
    )
    assert listed == turned
    assert ("Efficient Attention loses nothing on MNIST.", "undecided", "holds") in turned


def accuracies(table, trial, spec, like):
    """Reads the accuracies of a mechanism, or chance, at the trial's greatest size."""
    if spec == "chance" and len(like):
        return np.full(len(like), table["trials"][trial]["chance"])
    found = [row for row in table["rows"] if (row["trial"], row["spec"]) == (trial, spec) and "accuracy" in row]
    sizes = [name for row in found for name in row if name.startswith("accuracy_at_")]
    name = max(sizes, key=lambda name: int(name.rpartition("_")[2]), default="accuracy")
    return np.array(found[0][name], float) if found else np.array([])


def test_verdicts_on_trials_follow_from_the_kept_table():
    """All claims on trials that were run are one family."""
    table, said = json.loads((ROOT / "configs/trials.json").read_text()), {}
    of_trials = [claim for claim in ledger.claims() if claim.trial]
    for claim in of_trials:
        ours = accuracies(table, claim.trial, claim.spec, ())
        theirs = accuracies(table, claim.trial, claim.other, ours)
        if len(ours) and len(theirs):
            difference = (ours - theirs) * (-1 if claim.claimed == "worse" else 1)
            if difference.std() > 0:
                said[claim.says] = sayings({"claim": claim.claimed}, difference, 0.05, "accuracy")
    expected = step_down(said)
    assert {claim.says: claim.ruled for claim in of_trials} == {
        claim.says: expected.get(claim.says, "not tested") for claim in of_trials
    }


def test_all_other_verdicts_follow_from_their_grounds():
    for claim in ledger.claims():
        words = {"not tested"} if claim.evidence == "another question" or not claim.grounds.strip("–") else set()
        words = set() if claim.trial else words
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
    assert numbers.comes_to(text, printed) == so


def test_a_ratio_of_times_is_bounded_by_any_two_rounds_and_names_its_call(tmp_path, monkeypatch):
    rows = {
        "a": {"seconds": 2.0, "least": 1.8, "greatest": 2.4, "call": 1},
        "b": {"seconds": 4.0, "least": 3.0, "greatest": 4.5, "call": 0},
    }
    calls = [{"command": "benchmarks.device --only peers"}, {"command": "benchmarks.device --only core"}]
    (tmp_path / "gpu.json").write_text(json.dumps({"calls": calls, "rows": rows}))
    monkeypatch.setattr(numbers, "RESULTS", tmp_path)
    ratio = {"file": "gpu", "at": ["rows", "a"], "over": ["rows", "b"]}
    assert numbers.rounds(ratio) == pytest.approx((0.5, 1.8 / 4.5, 2.4 / 3.0))
    assert numbers.command(ratio) == "python -m benchmarks.device --only core"


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
    monkeypatch.setattr(numbers, "rounds", lambda ratio: (1.0, least, greatest))
    assert Claim("A", "§1", "It is.", kind="full size", ratio={"file": "a"}, claimed=claimed).verdict == verdict


@pytest.mark.parametrize(
    ("words", "verdict"),
    [("worse", "holds"), ("better", "holds"), ("equal within 0.01", "equal within 0.01"), ("undecided", "undecided")],
)
def test_a_claim_of_any_difference_holds_whichever_is_better(words, verdict, monkeypatch):
    row = Verdict(Comparison("every layer", ("a",), ("b",)), words, np.zeros(2), 0.1)
    monkeypatch.setattr(ledger, "judged", lambda *study: {"every layer": row})
    assert Claim("A", "§1", "It matters.", study="imdb", comparison="every layer").verdict == verdict


@pytest.mark.parametrize("kind", ledger.CLASSES)
@pytest.mark.parametrize("words", ["holds", "does not hold", "equal within 0.01", "undecided", "not tested"])
def test_what_is_below_the_papers_size_or_on_other_data_neither_holds_nor_fails(kind, words):
    said = ledger.worded(words, kind)
    assert (said in ("holds", "does not hold")) == (words in ("holds", "does not hold") and kind not in ledger.BELOW)
    assert said == worded(words, kind) or kind == "another question"


def test_a_study_has_a_known_class_and_other_data_are_said_to_be():
    assert {study.kind for study in ALL.values()} <= {*ledger.CLASSES} - {"exact", ""}
    for name in ("gpt_tuned", "wikitext2_gpt", "anki_heads"):
        assert ALL[name].kind.endswith("other data")


def test_every_result_that_has_an_amount_has_a_direction_and_an_amount():
    """A declared comparison with an effect is judged twice, with that effect."""
    sides = {}
    for claim in (claim for claim in ledger.claims() if claim.study and not claim.curve):
        sides.setdefault((claim.study, claim.comparison, claim.metric, claim.split), set()).add(claim.amount)
    effects = {
        (study, row["name"], "", "test"): row.get("effect", 0)
        for study in ALL
        for made in families(study)
        for row in made["family"]
    }
    for key, amounts in sides.items():
        assert len(amounts) in (1, 2), key
        assert 0 in amounts, key
        if effects.get(key):
            assert amounts == {0, effects[key]}, key


def test_to_lose_nothing_is_to_be_no_worse():
    says = re.compile(r"loses nothing|translates as well")
    rows = [claim for claim in ledger.claims() if claim.study and says.search(claim.says)]
    assert len(rows) == 8
    for claim in rows:
        declared = {row["name"]: row["claim"] for made in families(claim.study) for row in made["family"]}
        assert (claim.claimed or declared[claim.comparison]) == "no worse", claim.says


def test_marks_follow_from_what_was_declared_and_kept():
    for claim in (claim for claim in ledger.claims() if claim.marks):
        study, declared = ALL[claim.study], families(claim.study)[0]
        names = {row["name"]: row for row in declared["family"]}
        there = claim.comparison in names and not claim.metric and claim.split == "test" and not claim.curve
        assert ("untuned" in claim.marks) == (not study.tune), claim.says
        assert ("afterwards" in claim.marks) == (claim.late or not (study.declared and there)), claim.says
        changed = claim.amount or claim.claimed or claim.was or (there and names[claim.comparison].get("effect"))
        assert ("new rule" in claim.marks) == bool(changed), claim.says
        at_end = claim.study == "gpt_tuned" or (claim.study == "imdb_full" and "super" not in claim.comparison)
        assert ("grid end" in claim.marks) == at_end, claim.says
        by_loss = claim.study in ("anki_tuned", "recurrent_tuned") and claim.metric != "loss"
        assert ("other metric" in claim.marks) == by_loss, claim.says
        assert ("not flat" in claim.marks) == (claim.study not in ("mnist_tuned", "recurrent_tuned")), claim.says
        assert ("flatness unknown" in claim.marks) == (claim.study == "recurrent_tuned"), claim.says
    late = {claim.comparison for claim in ledger.claims() if claim.late and claim.study != "gpt_tuned"}
    assert late == {"W^A on dot product", "W^A on efficient", "σ = 0.3 against the paper's"}
    assert all(claim.late for claim in ledger.claims() if claim.study == "gpt_tuned")  # 17 of its 28 runs were in


def test_one_family_of_directions_and_amounts_would_change_the_verdict_that_the_page_names():
    changed = set()
    plain = [claim for claim in ledger.claims() if claim.amount and claim.split == "test" and not claim.metric]
    for study, chosen in itertools.product({claim.study for claim in plain}, (DECLARATIONS, ledger.AFTERWARDS)):
        if not (chosen / f"{study}.json").is_file():
            continue
        made = declaration.read(chosen / f"{study}.json")
        directions, amounts = ledger.judged(study), ledger.judged(study, amounts=True)
        names, asked = [row.name for row in made.family], [claim.comparison for claim in plain if claim.study == study]
        apart = {name: directions[name] for name in names}
        apart |= {f"{name}: as much": amounts[name] for name in names if name in asked}
        family = [dataclasses.replace(verdict.comparison, name=name) for name, verdict in apart.items()]
        for verdict in verdicts.judge(ledger.found(study), dataclasses.replace(made, family=family)):
            name = verdict.comparison.name
            if verdict.words != apart[name].words:
                assert (apart[name].words, verdict.words) == (verdicts.HOLDS, verdicts.UNDECIDED)
                changed.add((study, name))
    assert changed == {("cifar100_tuned", "super")}


def test_the_first_screen_has_a_row_for_each_paper_that_answers_as_the_ledger():
    rows = [claim for claim in ledger.claims() if claim.answer]
    assert [claim.paper for claim in rows] == ["DiGiugno", "Wikipedia", "Sanger", "Zhang", "Hosseini"]
    for claim in rows:
        first = claim.verdict.removesuffix(" at this size").capitalize()
        assert claim.answer.startswith(first), claim.says
    assert "{" not in ledger.main()
    assert FRONT.index("| DiGiugno | ") < 500


def test_a_claim_has_one_ground_and_class_and_the_tests_that_decide_exist():
    for claim in ledger.claims():
        grounds = (claim.study, claim.shown, claim.refuted, claim.sums, claim.ratio, claim.trial)
        assert sum(map(bool, grounds)) <= 1, claim.says
        assert claim.kind in ledger.CLASSES, claim.says
        assert claim.split in ("test", "train"), claim.says
        assert not (claim.study and claim.kind), claim.says  # it has the class of its study
        assert bool(claim.evidence) == (claim.grounds != "–"), claim.says
        for test in (*claim.shown, *claim.refuted):
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), test


def test_claims_about_whole_curves_follow_from_all_evaluations():
    curves = {claim.place: claim for claim in ledger.claims() if claim.curve}
    assert set(curves) == {"Fig. 9", "Fig. 11", "Fig. 2b"}
    for claim in curves.values():
        assert claim.ruled == derived_along(claim.study, claim.comparison, claim.metric), claim.place
