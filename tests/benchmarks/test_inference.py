"""Inference over whole passes: what is run, how often, and what of the paper stands beside it."""

import argparse
import json
import re
import sys

import jax
import pytest

from benchmarks import inference
from tests.sizes import once
from train.state import count_parameters


def run(monkeypatch, *flags):
    monkeypatch.setattr(sys, "argv", ["inference", "--rounds=1", *flags])
    inference.main()


def test_a_small_one_is_measured(tmp_path, monkeypatch, capsys):
    out = tmp_path / "inference.json"
    sizes = ("--tasks", "classify_imdb", "--heads", "4", "--batches", "4", "--samples=10", "--attention", "efficient")
    run(monkeypatch, *sizes, f"--out={out}")
    rows = {row["attention"]: row for row in json.loads(out.read_text())["rows"]}
    assert set(rows) == {"dot_product", "efficient"}
    assert rows["dot_product"]["ratio"] == {"median": 1.0, "least": 1.0, "greatest": 1.0}
    assert all(row["samples"] == 10 and row["seconds"] > 0 for row in rows.values())
    assert (rows["dot_product"]["paper_seconds"], rows["efficient"]["paper_seconds"]) == (0.183, 0.170)
    assert re.search(r"\| classify_imdb \| 4 \| 4 \| 10 \| .* \(0\.929\) \|", capsys.readouterr().out)


def test_a_pass_waits_for_each_batch_and_fills_the_last(monkeypatch):
    flags = argparse.Namespace(samples=10, precision="float32")
    run, seen, wait = inference.whole_pass("classify_imdb", "dot_product", 4, 4, flags), [], jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda out: seen.append(out.shape) or wait(out))
    run()
    assert seen == [(4, 2)] * 3


# Of an attention layer, by Hosseini's Tables 5, 6, 8, 9 and 10.
LAYERS = {"vit_mnist": 66_048, "vit_cifar100": 263_168, "classify_imdb": 4_224, "classify_amazon": 16_640}
LAYERS |= {"translate_europarl": 4_198_400}


@pytest.mark.parametrize("task", once(inference.TASKS, list(inference.TASKS)[:1]))
def test_the_models_are_hosseinis(task):
    model, inputs = inference.TASKS[task](inference.config_of(task, "dot_product", 4, "float32"), 2)
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    block = params["block_0" if "block_0" in params else "encoder_0"]
    assert count_parameters(block["attention"]) == LAYERS[task]
