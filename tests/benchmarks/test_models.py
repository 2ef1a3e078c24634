"""Decoding, layers, whole passes of inference and training steps: what is run, and what stands beside it."""

import argparse
import importlib.util
import re

import jax
import pytest

from benchmarks import decoding, inference, layers, train_step
from models.gpt import GPT
from tests.sizes import once
from train import loading
from train.state import count_parameters

ONE = {"median": 1.0, "least": 1.0, "greatest": 1.0}


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


@pytest.mark.more
def test_both_ways_of_decoding_are_timed(measured):
    small = " ".join(f"--config.model.{size}" for size in ("depth=1", "width=16", "heads=2", "mlp=16"))
    result, printed = measured(decoding.main, f"{small} --length=12 --rounds=1 --attention=super --attention=delta")
    rows = result["mechanisms"]
    assert set(rows) == {"super", "delta"}
    for row in rows.values():
        faster = row["times_faster"]
        assert 0 < faster["least"] == faster["median"] == faster["greatest"]  # one round
        assert row["tokens_per_second"] > 0
    # Twelve keys of 16 floats round to a KiB.
    assert f"{rows['super']['times_faster']['median']:.1f} | 1 |" in printed


@pytest.mark.parametrize("second", ["neurall", "dot_product(kv_heads=3)"])
def test_a_second_mechanism_is_refused_before_the_first_is_measured(second, monkeypatch, refused):
    monkeypatch.setattr(decoding, "measured", lambda *_: 1 / 0)
    assert re.search("neurall|kv_heads=3", refused(decoding.main, ["--attention=dot_product", f"--attention={second}"]))


@pytest.mark.more
def test_small_models_of_digiugno_are_measured(measured, monkeypatch):
    for name, size in (("CONTEXT", 8), ("VOCABULARY", 11), ("SIDE", 16)):
        monkeypatch.setattr(layers, name, size)
    load = loading.load

    def smaller(spec):
        config = load(spec)
        config.model.update({"depth": 2, "width": 16, "heads": 2, "mlp": 16})
        return config

    monkeypatch.setattr(loading, "load", smaller)
    spec = "neural(dim=2)|dot_product"
    result, printed = measured(layers.main, f"--rounds=1 --specs dot_product {spec}")
    for model, paper in (("gpt", [1.4, 7.8]), ("vit", [1.1, 6.6])):
        rows = {row["attention"]: row for row in result[model]}
        assert rows[spec]["paper"] == paper
        assert rows[spec]["seconds_a_sample"] > 0
        assert rows["dot_product"]["ratio"] == ONE
    assert "neural(dim=2)\\|dot_product` |" in printed


def test_a_small_pass_of_inference_is_measured(measured):
    sizes = "--tasks classify_imdb --heads 4 --batches 4 --samples=10 --attention efficient"
    result, printed = measured(inference.main, f"--rounds=1 {sizes}")
    rows = {row["attention"]: row for row in result["rows"]}
    assert set(rows) == {"dot_product", "efficient"}
    assert rows["dot_product"]["ratio"] == ONE
    assert all(row["samples"] == 10 and row["seconds"] > 0 for row in rows.values())
    assert (rows["dot_product"]["paper_seconds"], rows["efficient"]["paper_seconds"]) == (0.183, 0.170)
    assert re.search(r"\| classify_imdb \| 4 \| 4 \| 10 \| .* \(0\.929\) \|", printed)


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


EXAMPLES = re.findall(r"--config=(configs/(\w+?)_\w+\.py) .*--against=(\S+)", train_step.__doc__)


def test_both_examples_of_training_steps_have_twins():
    assert {model for _, model, _ in EXAMPLES} == set(train_step.INPUTS)
    for file, model, others in EXAMPLES:
        for name in others.split(","):
            assert importlib.util.find_spec(train_step.peer_of(model, name)), name
            train_step.check_twin(name, loading.resolve(file, {})[0])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("vit_digits.py --against=keras", "--config.model.attention=dot_product --config.model.pool=class_token"),
        ("vit_cifar100.py:super --against=torch", "give --config.model.attention=dot_product"),
        ("vit_cifar100.py --config.model.norm=post --against=keras", "give --config.model.norm=pre"),
        ("gpt_pydoc.py --against=torch --config.train.precision=bfloat16", "give --config.train.precision=float32"),
        ("gpt_pydoc.py --config.model.mlp=0 --against=torch", "give --config.model.mlp=128"),
        ("gpt_pydoc.py --config.optimizer.freeze=embed --against=torch", "give --config.optimizer.freeze="),
        ("gpt_pydoc.py --config.optimizer.name=sgd --against=torch", "give --config.optimizer.name=adamw"),
        ("vit_cifar100.py --config.data.mixup=0.2 --against=keras", "give --config.data.mixup=0.0"),
        ("gpt_pydoc.py --against=keras", "has no twin of the model gpt"),
        ("translate_anki.py --against=torch", "has no twin of the model encoder_decoder"),
    ],
)
def test_a_config_whose_twin_would_be_another_model_is_refused_at_once(given, said, refused):
    assert said in refused(train_step.main, f"--config=configs/{given}".split())
