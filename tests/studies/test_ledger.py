"""The ledger: every claim has a row, and every verdict on the page follows from a file by rule.

The verdicts on trained models are derived here once more, from the JSON and the rule as the page states it.
"""

import csv
import functools
import itertools
import json

import numpy as np
import pytest
from scipy import stats

from attention import UsageError
from studies import kept, ledger
from studies.declared import ALL
from studies.definitions import DECLARATIONS
from studies.ledger import Claim
from tests.conftest import ROOT

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


def test_verdicts_on_trained_models_follow_from_their_json():
    for claim in (claim for claim in ledger.claims() if claim.study):
        if claim.curve:
            assert claim.ruled == derived_along(claim.study, claim.comparison, claim.metric), claim.place
            continue
        if len(kept.read(claim.study).entries) < ALL[claim.study].runs:
            continue
        expected = derived(claim.study, claim.metric, claim.split, bool(claim.amount))[claim.comparison]
        there = ledger.judged(claim.study, claim.metric, claim.split, bool(claim.amount))
        assert there[claim.comparison].words == expected, claim.says
        assert claim.verdict == worded(ruled(expected), ALL[claim.study].kind), claim.says


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


def test_marks_follow_from_what_was_declared_and_kept():
    for claim in (claim for claim in ledger.claims() if claim.marks):
        study, declared = ALL[claim.study], families(claim.study)[0]
        names = {row["name"]: row for row in declared["family"]}
        there = claim.comparison in names and not claim.metric and claim.split == "test" and not claim.curve
        assert ("untuned" in claim.marks) == (not study.tune), claim.says
        assert ("afterwards" in claim.marks) == (claim.late or not (study.declared and there)), claim.says
        changed = claim.amount or claim.claimed or claim.was or (there and names[claim.comparison].get("effect"))
        assert ("new rule" in claim.marks) == bool(changed), claim.says
        assert ("grid end" in claim.marks) == (claim.study == "gpt_tuned"), claim.says  # it chose the lower of two
        by_loss = claim.study in ("anki_tuned", "recurrent_tuned") and claim.metric != "loss"
        assert ("other metric" in claim.marks) == by_loss, claim.says
        assert ("not flat" in claim.marks) == (claim.study not in ("mnist_tuned", "recurrent_tuned")), claim.says
        assert ("flatness unknown" in claim.marks) == (claim.study == "recurrent_tuned"), claim.says
    late = {claim.comparison for claim in ledger.claims() if claim.late and claim.study != "gpt_tuned"}
    assert late == {"W^A on dot product", "W^A on efficient", "σ = 0.3 against the paper's"}
    assert all(claim.late for claim in ledger.claims() if claim.study == "gpt_tuned")  # 17 of its 28 runs were in


def test_what_is_below_the_papers_size_or_on_other_data_neither_holds_nor_fails():
    for kind, words in itertools.product(ledger.CLASSES, ("holds", "does not hold", "undecided", "not tested")):
        said = ledger.worded(words, kind)
        full = words in ("holds", "does not hold") and kind not in ledger.BELOW
        assert (said in ("holds", "does not hold")) == full
        assert said == worded(words, kind) or kind == "another question"


def test_measured_claims_have_a_class_and_the_tests_that_decide_exist():
    for claim in ledger.claims():
        assert bool(claim.evidence) == (claim.grounds != "–"), claim.says
        for test in (*claim.shown, *claim.refuted):
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), test


def test_the_csv_has_every_claim():
    with (ROOT / "docs/replication/ledger.csv").open(encoding="utf-8", newline="") as file:
        found = [(row["where"], row["claim"], row["verdict"]) for row in csv.DictReader(file)]
    claims = [(claim.place, claim.says.replace("\\|", "|"), claim.verdict) for claim in ledger.claims()]
    assert found == claims, "run python -m docs.figures"


def test_a_claim_has_one_ground():
    with pytest.raises(UsageError, match="has several grounds"):
        Claim("A", "§1", "It is.", shown=["a::b"], refuted=["a::c"])
