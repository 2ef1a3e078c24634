"""Decoding, layers, whole passes of inference and training steps: what is run, and what stands beside it."""

import argparse

import jax
import pytest

from benchmarks import decoding, inference
from models.gpt import GPT
from train import loading
from train.state import count_parameters


def bytes_of(attention):
    config, _ = loading.resolve(f"configs/gpt_pydoc.py:{attention}", {"model.positions": "learned"})
    return decoding.cache_bytes(GPT(config.model, vocabulary=260, length=1024), batch=2)


def test_what_a_decode_cache_takes_by_part():
    whole = 2 * 4 * 1024 * 128 * 4  # batch, layers, tokens, width, bytes of a float
    assert bytes_of("dot_product") == {"key": whole, "value": whole, "state": 0}
    assert bytes_of("neural(dim=2)") == {"key": whole // 16, "value": whole, "state": 0}
    assert bytes_of("efficient") == {"key": whole, "value": 0, "state": 0}  # its keys are its values
    for attention in ("linear", "delta"):
        parts = bytes_of(attention)
        assert (parts["key"], parts["value"]) == (0, 0)
        assert 0 < parts["state"] < 2**18


def test_a_pass_waits_for_each_batch_and_fills_the_last(monkeypatch):
    flags = argparse.Namespace(samples=10, precision="float32")
    run, seen, wait = inference.whole_pass("classify_imdb", "dot_product", 4, 4, flags), [], jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda out: seen.append(out.shape) or wait(out))
    run()
    assert seen == [(4, 2)] * 3


# Of an attention layer, by Hosseini's Tables 5, 6, 8, 9 and 10.
LAYERS = {"vit_mnist": 66_048, "vit_cifar100": 263_168, "classify_imdb": 4_224, "classify_amazon": 16_640}
LAYERS |= {"translate_europarl": 4_198_400}


@pytest.mark.parametrize("task", inference.TASKS)
def test_the_models_are_hosseinis(task):
    model, inputs = inference.TASKS[task](inference.config_of(task, "dot_product", 4, "float32"), 2)
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    block = params["block_0" if "block_0" in params else "encoder_0"]
    assert count_parameters(block["attention"]) == LAYERS[task]
