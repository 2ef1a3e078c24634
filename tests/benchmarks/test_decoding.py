"""What a decode cache takes, by part, and that the command measures it beside the time."""

import json
import sys

import pytest

from benchmarks import decoding
from benchmarks.decoding import cache_bytes
from models.gpt import GPT
from train.config import loading


def bytes_of(attention):
    config, _ = loading.resolve(f"configs/gpt_pydoc.py:{attention}", {"model.positions": "learned"})
    return cache_bytes(GPT(config.model, vocabulary=260, length=1024), batch=2)


def test_neural_keys_take_a_sixteenth_of_dot_products():
    whole = 2 * 4 * 1024 * 128 * 4  # batch, layers, tokens, width, bytes of a float
    assert bytes_of("dot_product") == {"key": whole, "value": whole, "state": 0}
    assert bytes_of("neural(dim=2)") == {"key": whole // 16, "value": whole, "state": 0}


@pytest.mark.parametrize("attention", ["linear", "delta"])
def test_a_running_state_does_not_grow(attention):
    parts = bytes_of(attention)
    assert parts["key"] == parts["value"] == 0
    assert 0 < parts["state"] < 2**18


def test_efficient_attention_keeps_keys_that_are_values_once():
    parts = bytes_of("efficient")
    assert parts["key"] > 0 == parts["value"]


@pytest.mark.more
def test_the_command_times_both_ways(tmp_path, monkeypatch, capsys):
    out = tmp_path / "decoding.json"
    small = ["--config.model.depth=1", "--config.model.width=16", "--config.model.heads=2", "--config.model.mlp=16"]
    flags = ["--length=12", "--rounds=1", "--attention=super", "--attention=delta", f"--out={out}"]
    monkeypatch.setattr(sys, "argv", ["decoding", *small, *flags])
    decoding.main()
    rows = json.loads(out.read_text())["mechanisms"]
    assert set(rows) == {"super", "delta"}
    for row in rows.values():
        faster = row["times_faster"]
        assert 0 < faster["least"] == faster["median"] == faster["greatest"]  # one round
        assert row["tokens_per_second"] > 0
    # Twelve keys of 16 floats round to a KiB.
    assert f"{rows['super']['times_faster']['median']:.1f} | 1 |" in capsys.readouterr().out
