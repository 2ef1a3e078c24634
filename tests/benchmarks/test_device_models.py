"""Whole models on a device: what is listed, that each kind of row is made, and what the host does in gaps."""

import importlib
import types

import jax
import pytest

from benchmarks.device import loop, models
from benchmarks.device.items import Skipped
from benchmarks.train_step import INPUTS, peer_of
from tests.sizes import more
from train.dry_run.dry import DryRun

STEP = {"seconds", "wall_seconds", "units_per_second", "unit", "flops", "bytes", "bytes_of", "attention", "by", "batch"}


def test_the_papers_models_are_listed_and_nothing_is_computed(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_: pytest.fail("A backend was asked for while items were listed."))
    names = [item.name for part in (models, loop) for item in part.items(tiny=False)]
    assert len(set(names)) == len(names)
    assert all(name.startswith("models, ") for name in names)
    assert "models, step, gpt_wikitext103, neural(dim=16)|dot_product, batch 16" in names
    assert "models, step, vit_cifar100, super, batch 256" in names
    assert "models, step, llama, PyTorch compiled, batch 16" in names
    assert "models, forward, vit_imagenet, efficient, batch 256" in names
    assert "models, decoding, llama, transformers, batch 1" in names


@pytest.mark.parametrize("tiny", [False, True])
def test_configs_have_the_sizes_and_no_dropout(tiny):
    for model in models.MODELS:
        config = model.config(model.specs[0], 3, tiny)
        assert config.data.batch_size == 3
        assert (config.model.dropout, config.optimizer.clip, config.train.precision) == (0.0, 0.0, "bfloat16")
        assert (config.model.width == 32) == tiny
    assert models.LLAMA.config(models.GROUPED, 1, tiny=False).data.context == 1024


def of(part, name):
    """Finds the item whose name contains a text."""
    return next(item for item in part.items(tiny=True) if name in item.name)


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (models, "step, llama, dot_product"),
        more(models, "step, gpt_wikitext103, neural(dim=2)|"),
        more(models, "step, vit_cifar_neural, dot_product"),
        more(models, "forward, vit_mnist"),
        more(models, "step, vit_cifar_neural, PyTorch"),
        more(models, "step, llama, PyTorch,"),
        more(loop, "transformers, batch 2"),
        more(loop, "decoding, llama, batch 2"),
        more(loop, "loop"),
    ],
)
def test_an_item_is_measured(part, name):
    if "PyTorch" in name or "transformers" in name:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    row = of(part, name).prepare()()
    assert row["units_per_second"] > 0
    if part is models and "PyTorch" not in name:
        assert row.keys() >= STEP
        assert row["flops"] > 0
    if name == "loop":
        assert row["loop_over_step"]["min"] <= row["loop_over_step"]["median"] <= row["loop_over_step"]["max"]
        assert row["units_per_second"] == pytest.approx(row["batch"] / row["loop_seconds"])


def test_without_pytorch_its_items_are_left_out(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for part, name in ((models, "step, llama, PyTorch"), (loop, "transformers compiled")):
        with pytest.raises(Skipped, match=r"^The package torch is not installed, so .* is left out\.$"):
            of(part, name).prepare()


@pytest.mark.more
@pytest.mark.parametrize("name", ["gpt_wikitext103", "vit_cifar_neural", "vit_cifar100", "llama"])
def test_twins_have_the_same_loss(name):
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from benchmarks.peers import torch_layers

    model = next(model for model in models.MODELS if model.name == name)
    dry = DryRun.of(model.config(model.specs[0], 2, tiny=True), jax.devices()[:1])
    task, given = dry.setup.task, {name: x[0] for name, x in models.drawn(dry).items()}  # of the one step
    params = jax.jit(task.init)(jax.random.key(0))
    sums = jax.jit(task.loss)(params, given, jax.random.key(1))
    twin = importlib.import_module(peer_of(model.twin, "torch")).twin(jax.device_get(params), task.model)
    step = torch_layers.step_in_bfloat16(twin, 1e-3, 0.0, compiled=False)
    inputs, labels = (torch.as_tensor(given[name]) for name in INPUTS[task.model.config.name])
    assert float(step(inputs, labels.long())) == pytest.approx(float(sums["loss"] / sums["weight"]), rel=0.01)


def event(name, start, end):
    return types.SimpleNamespace(name=name, start_ns=start, duration_ns=end - start)


# Kernels work from 0 to 10, 30 to 50 and 90 to 100, so there are gaps of 20 and 40; the second two overlap.
KERNELS = [("add", (0, 10)), ("dot", (30, 15)), ("dot", (40, 10)), ("add", (90, 10))]
EVENTS = [
    event(loop.MARK, 0, 100),
    event("take", 2, 95),
    event("next", 8, 40),
    event("wait", 15, 28),
    event("log", 55, 80),
]


def test_gaps_have_the_names_of_what_the_host_did():
    row = loop.waits(KERNELS, loop.running(EVENTS[::-1]), steps=2)
    assert row["gap_seconds"] == pytest.approx(30e-9)
    assert row["gaps_by_innermost"] == pytest.approx({"wait": 6.5e-9, "take": 7.5e-9, "log": 12.5e-9, "next": 3.5e-9})
    assert row["gaps_by_loop"] == pytest.approx({"log": 12.5e-9, "next": 10e-9, "take": 7.5e-9})
    assert list(row["gaps_by_loop"]) == ["log", "next", "take"]


def test_gaps_in_which_nothing_was_traced_are_said():
    row = loop.waits(KERNELS, loop.running(EVENTS[3:]), steps=1)
    assert row["gaps_by_innermost"] == pytest.approx({loop.NOTHING: 22e-9, "wait": 13e-9, "log": 25e-9})


def test_the_devices_work_is_shared_among_kernels():
    row = loop.work(KERNELS, steps=2)
    assert row["busy"] == pytest.approx(0.4)
    assert row["device_seconds"] == pytest.approx(20e-9)
    assert row["kernels"] == pytest.approx({"dot": 12.5e-9, "add": 10e-9})
    assert row["launches"] == 2


def test_the_thread_that_launches_has_the_mark():
    line = lambda *events: types.SimpleNamespace(events=events)  # noqa: E731
    plane = lambda name, *lines: types.SimpleNamespace(name=name, lines=lines)  # noqa: E731
    marked = line(event(loop.MARK, 0, 9), event("$builtins len", 1, 2), event("$loop.py:1 take", 1, 8))
    host = plane("/host:CPU", line(event("other", 0, 9)), marked)
    trace = types.SimpleNamespace(planes=[plane("/device:GPU:0", marked), host])
    assert [found.name for found in loop.launching(trace)] == [loop.MARK, "$loop.py:1 take"]
