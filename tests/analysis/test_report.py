"""What is compared with what, how fairly, and what is said of it."""

import math

import numpy as np
import pytest
from scipy import stats

from analysis import compare, runs
from analysis.comparison import report
from analysis.report import main
from analysis.statistics import holm
from attention import UsageError
from tests.analysis.conftest import attention
from tests.fuzz.harness import answers

BASE = {4: (0.90, 0.91, 0.92, 0.90, 0.91), 8: (0.91, 0.92, 0.90, 0.92, 0.91)}
GAINS = {"better": (0.051, 0.049, 0.052, 0.050, 0.053), "same": (0.010, -0.012, 0.003, -0.004, 0.001)}


@pytest.fixture
def grid(tmp_path, write_runs):
    """Makes runs of two mechanisms and the baseline, with 4 and 8 heads and 5 seeds each."""
    gains = {"dot_product": (0.0,) * 5} | GAINS
    settings = {
        f"{name}-{heads}": ({"model__attention": name, "model__heads": heads}, np.add(base, gain).tolist())
        for heads, base in BASE.items()
        for name, gain in gains.items()
    }
    return write_runs(tmp_path / "runs", settings)


def compared(found, *names, **options):
    return compare.compare(found, compare.baseline(found, ""), names or ["accuracy"], runs.Run.value, **options)


def test_each_is_compared_with_the_baseline_of_its_own_block(grid):
    found = compared(grid)
    assert compare.baseline(grid, "heads=8") == compare.Baseline("model.heads", 8)
    assert [(c.group.label, c.baseline.label) for c in found] == [
        (f"{name}, heads {heads}", f"dot_product, heads {heads}") for name in ("better", "same") for heads in (4, 8)
    ]
    raw = [stats.ttest_1samp(gain, 0).pvalue for gain in GAINS.values() for _ in BASE]
    np.testing.assert_allclose([c.p for c in found], holm(np.array(raw)))
    np.testing.assert_allclose([c.difference.mean for c in found], [np.mean(g) for g in GAINS.values() for _ in BASE])
    width = stats.sem(GAINS["better"]) * stats.t.ppf(0.975, 4) * 100
    assert found[0].sentence == f"better by 5.10 ± {width:.2f} points, 5 seeds, p < 0.001"
    assert found[2].sentence.startswith("no difference can be claimed (-0.04 ± ")


def test_of_a_loss_the_lower_is_better(tmp_path, write_run):
    for seed in range(5):
        write_run(tmp_path / f"a{seed}", seed, loss=0.5 + seed / 100, model__attention="dot_product")
        write_run(tmp_path / f"b{seed}", seed, loss=0.3 + seed / 99, model__attention="super")
    (better,) = compared(runs.find([tmp_path]), "loss")
    assert better.sentence.startswith("better by 0.1998 ± ")


def test_seeds_that_do_not_pair_are_compared_by_welchs_test(tmp_path, write_runs):
    ours, theirs = (0.91, 0.95, 0.93), (0.8, 0.82)
    write_runs(tmp_path, attention(dot_product=theirs))
    (comparison,) = compared(write_runs(tmp_path, attention(super=ours), first=10))
    assert math.isclose(comparison.p, stats.ttest_ind(ours, theirs, equal_var=False).pvalue)
    assert "3 and 2 seeds, unpaired" in comparison.sentence
    assert compare.wilcoxon_text([comparison]) == ""


def test_seeds_that_only_one_has_do_not_count(tmp_path, write_runs):
    (comparison,) = compared(write_runs(tmp_path, attention(super=(0.91, 0.95, 0.99), dot_product=(0.8, 0.82))))
    assert comparison.seeds == (2,)
    assert math.isclose(comparison.p, stats.ttest_rel((0.91, 0.95), (0.8, 0.82)).pvalue)


def test_one_seed_claims_nothing(tmp_path, write_runs):
    made = report(write_runs(tmp_path, attention(super=(0.99,), dot_product=(0.10,))))
    (conclusion,) = made.differences.columns[-1].cells
    assert conclusion == "no difference can be claimed (+89.00 points, 1 seed, a spread needs two seeds)"
    assert "No difference was tested: a test needs two seeds per setting" in made.markdown()
    assert made.verdict[-1].startswith("One seed shows nothing, since another one may reverse the order: train more")


def test_wilcoxon_where_it_can_reach_the_level(tmp_path, write_runs):
    gains = np.array([0.02, 0.03, 0.01, 0.05, 0.04, 0.06])
    found = write_runs(tmp_path / "6", attention(super=0.9 + gains, dot_product=[0.9] * 6))
    five = write_runs(tmp_path / "5", attention(super=0.9 + gains[:5], dot_product=[0.9] * 5))
    for made, given in ((report(found), True), (report(five), False)):
        assert ("p_wilcoxon" in [column.name for column in made.differences.columns]) == given
        assert ("with 5 pairs its p-value is at least 0.0625, so it could never" in made.markdown()) == (not given)
    assert math.isclose(compared(found)[0].wilcoxon, stats.wilcoxon(gains).pvalue)
    assert not math.isnan(compared(found, "accuracy", "loss")[0].wilcoxon)  # equal losses are no test


def test_fairness_is_found_from_the_runs(tmp_path, write_run):
    base = {"steps": 40, "seconds": 8.0, "git": "7a4cb2390241", "versions": {"jax": "0.10.2", "numpy": "2.4.6"}}
    others = {"training_flops_per_example": 5, "steps": 80, "parameters": 1005, "versions": {"jax": "0.11.0"}}
    for seed, seconds in enumerate((9.0, 5000.0, 9.0)):  # of which the median takes no notice
        write_run(tmp_path / f"a{seed}", seed, model__attention="dot_product", train__length="4 epochs", **base)
        slower = base | others | {"seconds": seconds}
        write_run(tmp_path / f"b{seed}", seed, model__attention="super", train__length="8 epochs", **slower)
    found = runs.find([tmp_path])
    against = compare.baseline(found, "")
    assert compare.fairness(found, against, "Compared at") == (
        "Compared at equal parameters and FLOPs. "
        "Not equal: training examples (2.00 times the baseline's) and training time (1.12 times the baseline's)."
    )
    said = compare.fairness(found, against, "Compared at", clocks=False)
    assert said.endswith("Not equal: training examples (2.00 times the baseline's).")
    made = "The runs were not made alike, which may explain differences too: jax (0.10.2, 0.11.0)."
    assert made in report(found).markdown()
    assert found.keys == ("model.attention",)  # the length follows


@pytest.mark.parametrize(
    ("kind", "budget", "expected", "said"),
    # The slower one has twice the seconds and operations, and its curve is 0.5, 0.7, 0.8, 0.85 after each quarter.
    [
        ("examples", 4000, 0.85, "at 4,000 training examples,"),
        ("seconds", 8.0, 0.7, "at 8 seconds of training,"),
        ("flops", 40_000, 0.7, "at 4e+04 FLOPs of training,"),
    ],
)
def test_curves_are_compared_where_the_first_has_finished(tmp_path, write_run, kind, budget, expected, said):
    write_run(tmp_path / "fast", model__attention="dot_product")
    write_run(tmp_path / "slow", model__attention="super", seconds=16.0, training_flops_per_example=20)
    write_run(tmp_path / "between", model__attention="efficient", seconds=20.0, training_flops_per_example=25)
    found = runs.find([tmp_path])
    page = report(found, at=kind).markdown()
    assert f"Differences compare validation curves {said} when the first run had finished. Whole runs had" in page
    assert "Compared at equal" not in page
    reached, measure = compare.at_budget(found, kind)
    values = {each.label: measure(each.runs[0], "accuracy") for each in found.groups}
    assert reached == budget
    assert math.isclose(values["dot_product"], 0.85)
    assert math.isclose(values["super"], expected)
    # 8 of its 20 seconds are 1.6 of its 4 evaluations, and 40,000 of its 100,000 operations are too.
    assert math.isclose(values["efficient"], 0.85 if kind == "examples" else 0.5 + 0.6 * 0.2)


def test_the_page_has_it_all(grid, tmp_path, undrawn):
    assert main([str(tmp_path / "runs"), f"--out={tmp_path / 'out'}", "--metric=accuracy,seconds_per_epoch"]) == 0
    page = (tmp_path / "out/report.md").read_text()
    row = "| better | 4 | 100 (1) | 1,000 (1) | 2.00 ± 0.00 (1) | 5 ± 0 (1) | 95.00 ± 0.00 (1) | 95.90 ± 1.13 (1) |"
    assert row in page
    assert "Compared at equal training examples, parameters, FLOPs and training time." in page
    assert (tmp_path / "out/differences.csv").read_text().count("\n") == 1 + 2 * 4
    assert (tmp_path / "out/report.tex").read_text().count(r"\begin{tabular}") == 2


def test_a_report_goes_where_all_runs_are_or_where_it_is_told(tmp_path, write_run, undrawn, monkeypatch, refused):
    for folder, name in (("a", "dot_product"), ("b", "super")):
        write_run(tmp_path / folder / name, model__attention=name)
    monkeypatch.chdir(tmp_path)
    assert f"in several folders, such as {tmp_path}/a and {tmp_path}/b; say where" in refused(
        main, ["a/dot_product", "b/super"]
    )
    assert main(["a/dot_product", "b/super", "--out=c"]) == 0
    assert main(["a/dot_product", "b/../a/dot_product"]) == 0
    places = [str(path.relative_to(tmp_path).parent) for path in sorted(tmp_path.rglob("report.md"))]
    assert places == ["a", "c"]


def test_what_has_no_baseline_is_named(tmp_path, write_runs):
    fields = {
        f"{name}-{heads}": ({"model__attention": name, "model__heads": heads}, (0.5, 0.6))
        for name, heads in (("dot_product", 4), ("super", 4), ("super", 8), ("dot_product", 16))
    }
    page = report(write_runs(tmp_path / "a", dict([*fields.items()][:3]))).markdown()
    assert "No baseline equals these rows in all other fields: super, heads 8." in page
    apart = write_runs(tmp_path / "b", {name: fields[name] for name in ("super-8", "dot_product-4")})
    assert "Rows differ in more than attention, which may explain differences too: heads." in report(apart).markdown()
    found = write_runs(tmp_path / "c", dict([*fields.items()][1:]))
    with pytest.raises(UsageError, match=r"No setting is like one of --baseline=dot_product in all but"):
        compare.baseline(found, "dot_product")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--baseline=dot_prodct"], "Unknown baseline 'dot_prodct'. Did you mean 'dot_product'?"),
        (
            ["--baseline=8"],
            "--baseline=8 is a value of model.depth and of model.heads; write --baseline=model.depth=8.",
        ),
        (["--metric=bleu"], "Unknown metric of these runs 'bleu'. Valid: accuracy,"),
        (["--at=seconds"], "was not evaluated before the first run had finished; give all runs a shorter"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, write_run, refused, flags, message):
    write_run(tmp_path / "a", model__attention="dot_product", model__heads=8, model__depth=8)
    write_run(tmp_path / "b", model__attention="super", model__heads=8, model__depth=8, seconds=1000.0)
    write_run(tmp_path / "c", model__attention="super", model__heads=4, model__depth=8)
    write_run(tmp_path / "d", model__attention="super", model__heads=4, model__depth=4)
    assert message in refused(main, [str(tmp_path), *flags])


def test_what_is_in_doubt_is_said_beside_the_verdict(tmp_path, write_runs):
    facts = {"test_examples": 15, "baselines": {"most_frequent_accuracy": 0.5}}
    found = write_runs(tmp_path, attention(dot_product=(0.9, 0.98), super=(0.5, 0.49)), **facts)
    few, constant, wide = report(found).verdict[-3:]
    assert few == "Caution: The test split has only 15 examples, so one of them is 6.67 % of its result."
    assert constant == "Caution: super: An accuracy of 49.5% is not above the 50.0% of giving the same class always."
    assert "interval of the test accuracy reaches beyond 0 or 100 % for dot_product; more seeds" in wide


@pytest.mark.parametrize(
    "odd",
    [
        {"steps": 1, "seconds": 0.0, "curve": (0.5,)},
        {"curve": ()},
        {"training_flops_per_example": math.nan},
        {"test": {"loss": 0.5}},
    ],
)
def test_runs_with_little_in_them_are_reported(tmp_path, write_run, odd):
    """They are refused in a sentence if curves are compared at a budget that a run does not record."""
    write_run(tmp_path / "a", model__attention="super", **odd)
    write_run(tmp_path / "b", model__attention="dot_product")
    assert report(runs.find([tmp_path])).markdown()
    for at in compare.BUDGETS:
        answers(lambda at=at: report(runs.find([tmp_path]), at=at).markdown())
