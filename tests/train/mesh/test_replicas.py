"""Replicas trained together equal the runs of their seeds: batches, dropout, parameters, record, result."""

import itertools
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

import attention
from attention import UsageError
from attention.mesh import in_replicas
from tests import storm
from tests.sizes import more
from tests.train.conftest import TINY, record
from tests.train.test_resume import killed
from train import evaluate, loading, loop, tasks
from train.config.schema import MeshConfig
from train.config.timetable import Timetable
from train.decode.translator import Translator
from train.mesh import feeds, sharding
from train.mesh.replicas import Replicas
from train.optimizer import Rates
from train.run import evaluations, workdir
from train.run.results import run_result
from train.setup import Setup
from train.step import NonFiniteError, Step

pytestmark = pytest.mark.xdist_group(__name__)

SEEDS = range(3, 8)
MODEL = {name: text for name, text in TINY.items() if name.startswith("model.")}
SMALL = {"data.batch_size": "8", "data.eval_batch_size": "8", "optimizer.warmup": "2 steps", "train.length": "20 steps"}
DATES = {
    "data.source": "dates(sources=('en',), targets=('de',), first=2000, last=2003)",
    "data.validation_split": "validation[:16]",
    "data.test_split": "test[:16]",
    "data.buckets": "",
    "data.translations": "3",
}
TASKS = {
    "vit_digits": MODEL | {"data.mixup": "0.2", "train.accumulate": "2", "train.ema": "0.9"},
    "gpt_pydoc": MODEL | {"data.context": "16", "data.train_split": "train[:8]", "model.dropout": "0.1"},
    "translate_dates": MODEL | DATES | {"model.decoder_depth": "1"},
    "seq2seq_dates": DATES | {"model.embedding": "8", "model.hidden": "12", "model.teacher_forcing": "0.5"},
}


def resolved(name, **changes):
    overrides = SMALL | TASKS[name] | {field.replace("__", "."): str(text) for field, text in changes.items()}
    return loading.resolve(f"configs/{name}.py", overrides)


def one_device():
    return sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])


def task_of(config, double):
    """Makes a task whose model may compute in float64."""
    task = tasks.of(config)
    task.model = task.model.clone(dtype=jnp.float64) if double else task.model
    return task


def apart(config, seeds, steps, double):
    """Trains each seed apart, without replicas; returns the batches, losses and last parameters of each."""
    task = task_of(config, double)
    one, timetable = Step.of(config, task.loss), Timetable.of(config, task.train_examples)
    rates = Rates(jnp.float32(config.optimizer.learning_rate), timetable.warmup, timetable.total)
    step = jax.jit(lambda key, state, batch: one(state, batch, key, rates))
    init = jax.jit(lambda key: one.init(doubled(task.init(key)) if double else task.init(key)))
    found = []
    for seed in seeds:
        task._seed = seed  # of the data; making another task takes a second
        state = init(jax.random.key(seed))
        batches, losses, stream = [], [], task.train_batches(0, 1)
        for _ in range(steps):
            batches.append(next(stream))
            state, report = step(jax.random.key(seed + 1), state, batches[-1])
            losses.append(float(report["sums"]["loss"] / report["sums"]["weight"]))
        stream.close()
        found.append((batches, losses, jax.device_get((state.params, state.ema))))
    return found


def doubled(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, tree)


def together(config, devices, steps, double=False):
    """Trains all seeds in one program on so many devices; returns batches, losses and the state on the mesh."""
    setup = Setup.of(config, lambda config: task_of(config, double), jax.devices()[:devices])
    batches, losses = [], []
    with jax.set_mesh(setup.replicas.mesh), feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed:
        (state, _), program = setup.fresh(lambda params: (params, "")), setup.program(feed)
        state = doubled(state) if double else state
        for number in range(steps):
            rows, _ = feed.take(number, 1)
            batches.append(jax.tree.map(lambda x: np.asarray(x)[0], rows))
            state, report = program(state, rows, 1)
            sums = jax.device_get(report["sums"])
            losses.append(sums["loss"][0] / sums["weight"][0])
    return batches, np.array(losses), state


def assert_same(ours, separate, tolerance):
    batches, losses, state = ours
    for replica, (alone, own_losses, own_params) in enumerate(separate):
        for batch, own in zip(batches, alone, strict=True):
            chex.assert_trees_all_equal({name: x[replica] for name, x in batch.items()}, own)
        np.testing.assert_allclose(losses[:, replica], own_losses, rtol=0, atol=tolerance)
        mine = jax.tree.map(lambda x, r=replica: np.asarray(x)[r], (state.params, state.ema))
        chex.assert_trees_all_close(mine, own_params, rtol=0, atol=tolerance)


def long(*arguments):
    return pytest.param(*arguments, marks=pytest.mark.long)


@pytest.mark.more
@pytest.mark.parametrize(
    ("name", "double"),
    [
        *(("vit_digits", True), long("gpt_pydoc", True), long("translate_dates", True)),
        *(("gpt_pydoc", False), long("vit_digits", False), long("seq2seq_dates", False)),
    ],
)
def test_five_together_are_five_apart(name, double):
    """Batches are the same to the bit; losses and parameters differ by rounding alone."""
    with jax.enable_x64(double):
        config, _ = resolved(name, train__replicas=5, seed=SEEDS[0])
        separate = apart(config, SEEDS, 20, double)
        assert_same(together(config, 1, 20, double), separate, 1e-9 if double else 1e-5)
    assert len({losses[-1] for _, losses, _ in separate}) == 5


SPLIT = """
import sys
from tests.train.mesh import test_replicas as t

replicas, data, fsdp, tensor, *part = map(int, sys.argv[1:])
changes = {"mesh__data": data, "mesh__fsdp": fsdp, "mesh__tensor": tensor, "train__accumulate": 1}
config, _ = t.resolved("vit_digits", train__replicas=replicas, seed=3, **changes)
ours = t.together(config, data * fsdp * tensor, 3)
t.assert_same(ours, t.apart(config, range(3, 3 + replicas), 3, double=False), 1e-5)
kernel = ours[2].params["block_0"]["mlp"]["up"]["kernel"]
assert kernel.shape == (replicas, 16, 32) and kernel.addressable_shards[0].data.shape == tuple(part), kernel.sharding
print("equal")
"""
SILENT = """
import jax
from tests.train.mesh import test_replicas as t
from train.mesh import feeds
from train.setup import Setup

setup = Setup.of(t.resolved("vit_digits", train__replicas=4)[0], devices=jax.devices()[:4])
with jax.set_mesh(setup.replicas.mesh), feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed:
    rows, _ = feed.take(0, 1)
    text = setup.program(feed).compile(setup.fresh(lambda params: (params, ""))[0], rows).as_text()
assert not any(kind in text for kind in ("all-reduce", "all-gather", "all-to-all", "collective-permute"))
print("silent")
"""


@pytest.mark.parametrize(
    ("replicas", "mesh", "part"),
    [more(8, (4, 1, 1), (2, 16, 32)), long(4, (2, 2, 2), (4, 8, 16)), long(3, (2, 1, 1), (3, 16, 32))],
)
def test_on_devices_they_are_split_or_their_batches_are(run_python, replicas, mesh, part):
    """`part` is the shape of a parameter on one device."""
    assert "equal" in run_python("-c", SPLIT, *map(str, (replicas, *mesh, *part)), devices=8).stdout


def test_kernels_are_told_of_replicas():
    """They see the name of an axis through whatever is traced in between."""

    def function(x):
        told = jax.lax.scan(jax.checkpoint(lambda x, _: (x, in_replicas())), x, length=2)[1]
        return jnp.all(told)

    for seeds in ([1], [1, 2]):
        assert np.all(jax.jit(Replicas(seeds, one_device()).over(function, True))(jnp.zeros(2)) == (len(seeds) > 1))
    assert not in_replicas()


@pytest.mark.more
def test_a_replica_a_device_communicates_nothing(run_python):
    assert "silent" in run_python("-c", SILENT, devices=4).stdout


def _normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize(
    ("score", "implementation"),
    [
        *(("neural", "chunked"), more("neural", "pallas"), long("neural", "xla")),
        *(("dot_product", "chunked"), long("dot_product", "xla")),
    ],
)
def test_kernels_and_their_dropout_are_the_same_under_vmap(score, implementation):
    """Values are one-hot, so outputs are the weights, and dropped ones are zero."""
    network = [(_normal(1, 3, 8, 4), _normal(2, 3, 4)), (_normal(3, 3, 4, 1), _normal(4, 3, 1))]
    function, more = getattr(attention, f"{score}_attention"), [network] if score == "neural" else []
    query, key = _normal(5, 3, 2, 16, 2, 4), _normal(6, 3, 2, 16, 2, 4)
    value = jnp.broadcast_to(jnp.eye(16)[:, None], (3, 2, 16, 2, 16))

    def weights_and_gradient(dropout_key, *arrays):
        def weights(query, key, value, *more):
            options = {"dropout_rate": 0.3, "dropout_key": dropout_key, "implementation": implementation}
            return function(query, key, value, *more, **options)

        out, pull = jax.vjp(weights, *arrays)
        return out, pull(jnp.sin(out))

    arguments = (jax.random.split(jax.random.key(0), 3), query, key, value, *more)
    many = jax.device_get(jax.jit(jax.vmap(weights_and_gradient))(*arguments))
    alone = jax.jit(weights_and_gradient)
    for replica in range(3):
        own = jax.device_get(alone(*jax.tree.map(lambda x, r=replica: x[r], arguments)))
        ours = jax.tree.map(lambda x, r=replica: x[r], many)
        np.testing.assert_array_equal(ours[0] == 0, own[0] == 0)
        chex.assert_trees_all_close(ours, own, rtol=1e-5, atol=1e-6)
        assert 0.2 < (own[0] == 0).mean() < 0.4


RUN = {
    "train__length": "12 steps",
    "train__log_every": "3 steps",
    "train__eval_every": "3 steps",
    "train__checkpoint_every": "2 steps",
    "train__keep": 1,
    "data__batch_size": 32,
    "data__eval_batch_size": 120,
}


def trained(folder, name="vit_digits", **changes):
    config, plain = resolved(name, **RUN | changes)
    loop.train_and_evaluate(config, plain, folder)
    return folder


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Trains two replicas."""
    return trained(tmp_path_factory.mktemp("replicas") / "run", seed=3, train__replicas=2)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """Trains the second replica's seed alone."""
    return trained(tmp_path_factory.mktemp("single") / "run", seed=4)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.more
def test_the_record_has_a_line_for_each_replica_as_its_own_run(pair, single):
    lines, alone = record(pair), record(single)
    assert [line["replica"] for line in lines] == [0, 1] * len(alone)
    own = [line for line in lines if line.pop("replica") == 1]
    for ours, theirs in zip(own, alone, strict=True):
        assert (ours.pop("step"), ours.pop("split")) == (theirs.pop("step"), theirs.pop("split"))
        assert_close(ours, theirs)


@pytest.mark.more
def test_the_result_holds_each_replicas_own(pair, single):
    replicas, alone = result_of(pair)["replicas"], result_of(single)
    assert [(own["replica"], own["seed"]) for own in replicas] == [(0, 3), (1, 4)]
    assert replicas[1].keys() - {"replica", "seed"} == alone.keys()
    for name in ("steps", "best_step", "parameters", "baselines"):
        assert replicas[1][name] == alone[name]
    for at in ("final", "best"):
        assert replicas[1][at].keys() == alone[at].keys()
        for split, metrics in alone[at].items():
            assert_close(replicas[1][at][split], metrics)
    assert replicas[0]["final"]["test"] != replicas[1]["final"]["test"]


def test_mean_and_spread():
    def own(accuracy, **more):
        return {"final": {"test": {"accuracy": accuracy}}, "best": {"test": {"accuracy": 2 * accuracy}} | more}

    train = {"train": {"accuracy": 1.0}}
    found = run_result(
        [{"steps": 5} | own(a, **more) for a, more in ((0.5, train), (0.6, {}), (0.9, train))],
        (0, 1, 2),
        (0.1,) * 3,
        {},
    )
    assert found["mean"]["best"] == {"test": {"accuracy": pytest.approx(2 * 2 / 3)}}  # not all have a line of training
    assert found["std"]["final"]["test"]["accuracy"] == pytest.approx((0.13 / 3) ** 0.5)


@pytest.mark.more
def test_every_replicas_best_checkpoint_is_kept_and_no_other(pair):
    best = {own["best_step"] for own in result_of(pair)["replicas"]}
    assert {int(p.name) for p in (pair / "checkpoints").iterdir() if p.name.isdigit()} == best | {12}


@pytest.mark.more
@pytest.mark.parametrize("step", ["best", more("last")])
def test_evaluate_gets_the_same_numbers(pair, capsys, step):
    assert evaluate.main(["--workdir", str(pair), "--step", step]) == 0
    printed = capsys.readouterr().out.splitlines()
    for replica, own in enumerate(result_of(pair)["replicas"]):
        at, metrics = evaluate.evaluate(pair, step, "test", replica=replica)
        assert at == (own["best_step"] if step == "best" else 12)
        assert_close(metrics, own["best" if step == "best" else "final"]["test"])
        assert printed[replica].startswith(f"replica {replica} step {at} test: ")


@pytest.mark.more
def test_killed_and_started_again_it_is_bit_identical(pair, tmp_path):
    with killed(8):
        trained(tmp_path / "run", seed=3, train__replicas=2)
    trained(tmp_path / "run", seed=3, train__replicas=2)
    storm.assert_same(tmp_path / "run", pair)


@pytest.mark.more
def test_texts_are_written_and_used_replica_by_replica(tmp_path):
    changes = {"train__replicas": 2, "train__length": "2 steps", "train__eval_every": "2 steps"}
    folder = trained(tmp_path / "run", "seq2seq_dates", **changes, data__batch_size=8, data__eval_batch_size=8)
    lines = [line for line in record(folder) if line["split"] == "validation"]
    assert [line["replica"] for line in lines] == [0, 1]
    assert lines[0]["chrf"] != lines[1]["chrf"]
    _, metrics = evaluate.evaluate(folder, "last", "validation", replica=1)
    assert metrics["chrf"] == lines[1]["chrf"]
    params = jax.device_get(Translator.load(folder, "last", replica=1).params)
    stacked = ocp.load(folder / "checkpoints" / "2")["params"]
    chex.assert_trees_all_equal(params, jax.tree.map(lambda x: np.asarray(x)[1], stacked))


@pytest.mark.more
@pytest.mark.parametrize("training", [True, False])
def test_a_replica_that_diverges_is_frozen_and_the_others_go_on(pair, tmp_path, monkeypatch, capsys, training):
    step = 5 if training else 3
    if training:
        poison(monkeypatch, lambda batch, taken: batch["image"][0, 1 : 1 + (taken == step - 1)].fill(np.nan))
    else:
        monkeypatch.setattr(evaluations.Evaluator, "__call__", of_the_second_infinite(evaluations.Evaluator.__call__))
    folder = trained(tmp_path / "run", seed=3, train__replicas=2)
    said = " ".join(capsys.readouterr().out.split())
    assert (f"of replica 1 (seed 4) was nan and the gradient norm nan at step {step}, on" in said) == training
    ended = result_of(folder)["replicas"][1]["ended"]
    assert (ended["why"], ended["step"]) == ("diverged", step - training)
    assert (len(ended.get("examples", [])) == 32) == training
    healthy, alone = ([line for line in record(place) if line["replica"] == 0] for place in (folder, pair))
    assert healthy == alone
    assert result_of(folder)["replicas"][0]["best"] == result_of(pair)["replicas"][0]["best"]
    assert result_of(folder)["mean"]["final"]["test"] == result_of(folder)["replicas"][0]["final"]["test"]
    assert max(line["step"] for line in record(folder) if line["replica"] == 1 and line["split"] != "test") <= step


def poison(monkeypatch, spoil):
    """Spoils each batch of training, given the number of those before it."""
    to_devices, taken = Replicas.to_devices, itertools.count()

    def poisoned(replicas, batch, stacked, **others):
        if stacked:
            spoil(batch, next(taken))
        return to_devices(replicas, batch, stacked, **others)

    monkeypatch.setattr(Replicas, "to_devices", poisoned)


def of_the_second_infinite(measure):
    """Makes the second replica's measured loss infinite."""

    def call(evaluator, split, params):
        measured, speed = measure(evaluator, split, params)
        measured[1].metrics["loss"] = np.inf
        return measured, speed

    return call


def test_where_all_diverge_the_run_ends_as_one_alone_does(tmp_path, monkeypatch):
    poison(monkeypatch, lambda batch, _: batch["image"].fill(np.nan))
    with pytest.raises(NonFiniteError, match=r"The loss of replica \d \(seed \d\) was nan .* at step 1, on"):
        trained(tmp_path / "run", seed=3, train__replicas=2)


@pytest.mark.more
def test_what_is_not_supported_is_said_first(pair, tmp_path, monkeypatch, refused):
    with pytest.raises(UsageError, match=r"data.buckets='12' gives batches of several lengths, which train.replicas"):
        trained(tmp_path / "run", "seq2seq_dates", train__replicas=2, data__buckets="12")
    assert not (tmp_path / "run").exists()
    for replica in (-1, 2):
        said = refused(evaluate.main, ["--workdir", str(pair), f"--replica={replica}"])
        assert f"--replica={replica} is not one of this run's: train.replicas=2, so give 0" in said
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(UsageError, match=r"2 replicas .* train in one process, but there are 2"):
        Replicas.of(resolved("vit_digits", train__replicas=2)[0], one_device())
    assert workdir.read_result(pair, 1)["seed"] == 4
