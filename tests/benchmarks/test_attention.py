"""The benchmark measures what it says: the paper's form is Neural Attention, ratios are within a round."""

import argparse
import dataclasses
import time

import chex
import jax
import pytest

from attention.errors import UnsupportedError
from benchmarks import attention, measure
from models import mechanisms
from tests.sizes import once

SHAPE = attention.Shape(batch=2, length=9, heads=2, width=4, dtype="float32", causal=True)


def outputs(spec: str, form: str) -> jax.Array:
    (core,) = [core for core in attention.cores(SHAPE, [spec]) if core.name == f"{spec}, {form}"]
    weights = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), core.weights)
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 9, 2, 4))
    return jax.jit(core.function)(weights, query, key, value, query.reshape(2, 9, -1))


@pytest.mark.parametrize("spec", once(attention.PAPER, ["neural(dim=16)"]))
def test_the_papers_form_is_neural_attention(spec):
    chex.assert_trees_all_close(outputs(spec, "paper"), outputs(spec, "xla"), atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_pytorch_computes_the_same_and_its_gradients(causal):
    pytest.importorskip("torch", reason="PyTorch is not installed")
    shape = dataclasses.replace(SHAPE, causal=causal)
    contestants = {core.name: core for core in attention.cores(shape, ["dot_product"])}
    ours, theirs = contestants[attention.BASELINE], contestants[attention.PYTORCH]
    turned = lambda tensor: tensor.detach().numpy().swapaxes(1, 2)  # noqa: E731
    out, gradients = (attention.program(theirs, shape, what).call() for what in attention.PASSES)
    chex.assert_trees_all_close(attention.program(ours, shape, "forward").call(), turned(out), atol=1e-6)
    _, (_, *wanted) = attention.program(ours, shape, "forward+backward").call()
    chex.assert_trees_all_close(wanted, [turned(x) for x in gradients], atol=1e-5)


@pytest.mark.more
def test_every_row_of_the_table_is_measured_or_shares_its_core():
    rows = mechanisms.MECHANISMS
    core = lambda row: (row.score, row.align, row.value == "tied")  # noqa: E731
    names = {core.name.rsplit(", ", 1)[0] for core in attention.cores(SHAPE, attention.SPECS)}
    assert {core(rows[name]) for name in names & set(rows)} == {core(row) for row in rows.values()}


def test_ratios_are_within_a_round_and_a_budget_ends_a_contestant():
    pace = [1.0]

    def call(seconds):
        def run():
            time.sleep(seconds * pace[0])
            pace[0] += 0.1
            return jax.numpy.zeros(())

        return run

    times = measure.in_turn({"base": call(0.02), "double": call(0.04)}, rounds=6, budget=0.35)
    assert len(times["base"]) == 6
    assert 3 <= len(times["double"]) < 6
    assert measure.ratio(times, "base", "base") == {"median": 1.0, "least": 1.0, "greatest": 1.0}
    assert 1.5 < measure.ratio(times, "double", "base")["median"] < 3.0
    assert measure.ratio(times, "triple", "base") is None


@pytest.mark.more
def test_the_command_writes_what_it_prints(measured, tmp_path):
    sizes = f"--length=16 --heads=2 --width=8 --rounds=1 --growth 16 32 --plot={tmp_path}/growth.png"
    result, printed = measured(attention.main, f"{sizes} --only dot_product neural")
    names = {"dot_product, jax.nn", "dot_product, xla", "dot_product, chunked", "neural, chunked", "neural, paper"}
    for what in attention.PASSES:
        rows = {row["name"]: row for row in result[what]}
        assert names <= set(rows)
        assert all(row["seconds"] > 0 and row["flops"] > 0 for row in rows.values())
    assert [row["length"] for row in result["growth"]] == [16, 32]
    assert result["growth"][0]["cores"]["neural, chunked"]["seconds"] == rows["neural, chunked"]["seconds"]
    assert (tmp_path / "growth.png").stat().st_size > 5000
    assert "neural, paper" in printed


def test_unknown_mechanisms_are_named_before_anything_is_measured(monkeypatch, refused):
    monkeypatch.setattr(measure.Roof, "measured", lambda dtype: 1 / 0)
    assert "Did you mean 'neural'" in refused(attention.main, ["--only", "neurall", "--growth"])


def test_a_causal_mask_halves_the_work_of_pairs_and_no_other():
    whole, half = (
        attention.useful(attention.mechanism_of("dot_product"), dataclasses.replace(SHAPE, causal=causal))
        for causal in (False, True)
    )
    assert 2 * half.flops == whole.flops  # it has no other
    linear = attention.mechanism_of("linear")
    assert attention.useful(linear, SHAPE).flops == linear.score.cost(SHAPE.sizes, 9, 9).flops
    neural = attention.mechanism_of("neural")
    once = neural.score.cost(SHAPE.sizes, 9, 0).flops + neural.score.cost(SHAPE.sizes, 0, 9).flops
    assert once > 0
    assert 2 * attention.useful(neural, SHAPE).flops == neural.score.cost(SHAPE.sizes, 9, 9).flops + once


def test_a_picture_without_lengths_is_refused_before_anything_is_measured(monkeypatch, refused, tmp_path):
    monkeypatch.setattr(measure.Roof, "measured", lambda dtype: 1 / 0)
    assert "give lengths to --growth" in refused(attention.main, ["--growth", f"--plot={tmp_path}/growth.svg"])


def test_growth_goes_on_without_what_is_not_supported(monkeypatch, capsys):
    def program(core, shape, what):
        if (core.name, shape.length) == (attention.OWN, 16):
            raise UnsupportedError("not at this length")
        return measure.Program(lambda: None, temp=10, peak=20)

    both = [attention.Core(name, None, (), None) for name in (attention.BASELINE, attention.OWN)]
    monkeypatch.setattr(attention, "cores", lambda *_: both)
    monkeypatch.setattr(attention, "program", program)
    monkeypatch.setattr(measure, "in_turn", lambda calls, *_: {name: [1.0] for name in calls})
    rows = list(attention.growth(SHAPE, argparse.Namespace(growth=(8, 16), memory=1.0, budget=1.0), {}))
    assert rows[0]["cores"][attention.OWN]["seconds"] == 1.0
    assert rows[1]["cores"][attention.OWN] == {}
    assert f"not supported here: {attention.OWN}" in capsys.readouterr().out
    assert "not run |" in attention.growth_table(rows)
    attention.growth_figure(rows)


@pytest.mark.more
def test_nothing_is_run_that_needs_more_memory_than_allowed(monkeypatch, measured):
    monkeypatch.setattr(measure, "in_turn", lambda calls, *_: 1 / 0 if calls else {})
    flags = "--length=16 --heads=2 --width=8 --rounds=1 --only neural --growth --memory=0.00000001"
    assert "too much memory" in measured(attention.main, flags)[1]
