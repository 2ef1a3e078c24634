"""Low-rank additions: nothing changes before the first step, they alone are trained, and merged they are the model."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from attention import UsageError
from models.published import pretrained
from models.surgery import low_rank
from tests.train.conftest import arguments
from train import evaluate, loading, main
from train.decode import export, trained
from train.optimizer import matching
from train.setup import Setup

SPEC = "lora(rank=2, alpha=6.0, on='attention/(query|out)/|mlp/up/', also='norm/scale')"
KERNELS = {"query": (8, 2, 4), "key": (8, 2, 4), "out": (2, 4, 8)}


def kernels(seed=0):
    draw = np.random.default_rng(seed)
    return {"attention": {n: {"kernel": jnp.asarray(draw.normal(size=s))} for n, s in KERNELS.items()}}


def test_a_merged_kernel_is_the_sum_by_hand():
    lora = low_rank.Lora(rank=3, alpha=6.0, on="(query|out)")
    params = lora.added(kernels(), jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, lora.merged(params), kernels())  # B is zero
    for name, (inputs, outputs) in {"query": (8, (2, 4)), "out": (8, (8,))}.items():
        layer = params["attention"][name]
        layer["lora_b"] = jax.random.normal(jax.random.key(1), layer["lora_b"].shape)
        a, b = layer["lora_a"].reshape(inputs, 3), layer["lora_b"].reshape(3, 8)
        expected = layer["kernel"].reshape(inputs, 8) + 6 / 3 * a @ b
        found = lora.merged(params)["attention"][name]["kernel"]
        np.testing.assert_allclose(found, expected.reshape(layer["kernel"].shape), rtol=1e-6)
        assert outputs == layer["lora_b"].shape[1:]
    assert {*params["attention"]["key"]} == {"kernel"}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lora(on='(')", r"The option on of lora must be a regular expression, but '\(' is none"),
        ("dora", r"Unknown adaptation in optimizer.lora 'dora'. Did you mean 'lora'\?"),
        ("lora(on='head')", r"on='head', which matches none of the kernels, such as \['attention/query"),
    ],
)
def test_mistakes_are_one_sentence(spec, message):
    with pytest.raises(UsageError, match=message):
        low_rank.parse(spec).added(kernels(), jax.random.key(0))


COMMON = {"config": "configs/gpt_pydoc.py", "data__context": 16, "data__train_split": "train[:8]"}
COMMON |= {"data__test_split": "test[:2]", "model__positions": "learned", "model__activation": "gelu_tanh"}
COMMON |= {"model__attention_bias": True, "train__length": "4 steps", "optimizer__lora": SPEC}


def setup_of(**changes):
    flags, overrides = main.parse(arguments("unused", **COMMON | changes))
    return Setup.of(loading.resolve(flags.config, overrides)[0])


def test_only_the_additions_and_what_is_named_too_are_trained():
    setup = setup_of()
    frozen = flatten_dict(matching(setup.config.optimizer.frozen, setup.shapes.params), sep="/")
    places = ("block_0/attention/query", "block_0/attention/out", "block_0/mlp/up")
    expected = {f"{place}/{name}" for place in places for name in low_rank.NAMES} | {"norm/scale"}
    assert {path for path, is_frozen in frozen.items() if not is_frozen} == expected


@pytest.mark.more
def test_what_is_evaluated_and_exported_is_merged(tmp_path):
    run = tmp_path / "run"
    assert main.main(arguments(run, **COMMON)) == 0
    trained_on = json.loads((run / "result.json").read_text())["final"]["test"]["loss"]
    assert evaluate.evaluate(run, "last", "test")[1]["loss"] == pytest.approx(trained_on, rel=1e-6)
    _, params = trained.load(run, "last")
    assert not any(map(low_rank.is_addition, flatten_dict(params, sep="/")))
    export.export(run, str(tmp_path / "out"), step="last")
    task = setup_of(optimizer__lora="").task
    loaded, report = pretrained.load(str(tmp_path / "out"), task.model.config, task.init(jax.random.key(1)))
    tokens = jnp.arange(12)[None]
    logits = [task.model.apply({"params": tree}, tokens) for tree in (params, loaded)]
    np.testing.assert_array_equal(*logits)
    assert report.new == ()
