"""What a decode cache takes, by part."""

import pytest

from benchmarks.decoding import cache_bytes
from models.gpt import GPT
from train import configs


def bytes_of(attention):
    config, _ = configs.resolve(f"configs/gpt_pydoc.py:{attention}", {"model.positions": "learned"})
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
