"""The benchmark measures what it says: the paper's form is Neural Attention, ratios are within a round."""

import json
import sys
import time

import chex
import jax
import pytest

from attention.errors import UsageError
from benchmarks import attention, measure
from models import mechanisms

SHAPE = attention.Shape(batch=2, length=9, heads=2, width=4, dtype="float32", causal=True)


def outputs(name: str) -> jax.Array:
    (core,) = [core for core in attention.cores(SHAPE, attention.SPECS) if core.name == name]
    weights = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(x.size), x.shape), core.weights)
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 9, 2, 4))
    return core.function(weights, query, key, value, query.reshape(2, 9, -1))


@pytest.mark.parametrize("spec", attention.PAPER)
def test_the_papers_form_is_neural_attention(spec):
    chex.assert_trees_all_close(outputs(f"{spec}, paper"), outputs(f"{spec}, xla"), atol=1e-5)


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
            pace[0] += 0.2
            return jax.numpy.zeros(())

        return run

    timings = measure.paired({"base": call(0.02), "double": call(0.04)}, "base", rounds=6, budget=0.15)
    assert timings["base"].rounds == 6
    assert timings["double"].rounds < 6
    assert timings["base"].ratio == (1.0, 1.0, 1.0)
    assert 1.5 < timings["double"].ratio[0] < 3.0


def test_the_command_writes_what_it_prints(tmp_path, monkeypatch, capsys):
    out = tmp_path / "attention.json"
    flags = f"attention --length=16 --heads=2 --width=8 --rounds=1 --only dot_product neural --growth 16 32 --out={out}"
    monkeypatch.setattr(sys, "argv", flags.split())
    attention.main()
    result = json.loads(out.read_text())
    names = {"dot_product, jax.nn", "dot_product, xla", "dot_product, chunked", "neural, chunked", "neural, paper"}
    for what in attention.PASSES:
        rows = {row["name"]: row for row in result[what]}
        assert names <= set(rows)
        assert all(row["seconds"] > 0 and row["flops"] > 0 for row in rows.values())
    assert [row["length"] for row in result["growth"]] == [16, 32]
    assert out.with_suffix(".png").stat().st_size > 5000
    assert "neural, paper" in capsys.readouterr().out


def test_unknown_mechanisms_are_named(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attention", "--only", "neurall", "--growth"])
    with pytest.raises(UsageError, match="Did you mean 'neural'"):
        attention.main()
