"""Batches from the host and from the devices train alike, and a run keeps its choice of the two."""

import chex
import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from tests.sizes import more
from tests.train import small_tasks
from tests.train.conftest import arguments
from train import main
from train.mesh import feeds
from train.setup import Setup

pytestmark = pytest.mark.xdist_group(__name__)


def taken(setup, feed, calls, program=None):
    """Takes steps in calls of these lengths; returns the state and the losses."""
    with jax.set_mesh(setup.replicas.mesh):
        (state, _), losses, step = setup.fresh(lambda params: (params, "")), [], 0
        program = program or setup.program(feed)
        for count in calls:
            rows, index = feed.take(step, count)
            assert index.shape[0] == count
            state, report = program(state, rows, count)
            sums = jax.device_get(report["sums"])
            losses += (sums["loss"][:count] / sums["weight"][:count]).tolist()
            step += count
    return jax.device_get(state), losses


def setup_of(name, tmp_path, **changes):
    return Setup.of(small_tasks.config_of(name, tmp_path, **changes))


@pytest.mark.more
@pytest.mark.parametrize("name", ["vit_digits", more("gpt_pydoc"), more("mlm_pydoc"), more("classify_imdb")])
def test_a_hundred_steps_are_the_same_wherever_the_data_live(name, tmp_path):
    """Losses agree to 1e-5 and parameters to 1e-4, since the two programs round differently.

    Biases of keys are left out: softmax ignores them, and Adam scales up the rounding of their gradients.
    """
    setup = setup_of(name, tmp_path, train__length="100 steps")
    with feeds.HostFeed(setup.replicas, setup.task.sources["train"]) as feed:
        by_host, losses = taken(setup, feed, [1] * 100)
    with feeds.of(setup.replicas, setup.task.sources["train"], "") as feed:
        assert feed.name == "devices"
        by_devices, others = taken(setup, feed, [37, 63])
    np.testing.assert_allclose(others, losses, rtol=1e-5, atol=1e-5)
    ours, theirs = (flatten_dict(state.params, sep="/") for state in (by_devices, by_host))
    compared = [path for path in theirs if not path.endswith("key/bias")]
    chex.assert_trees_all_close([ours[path] for path in compared], [theirs[path] for path in compared], atol=1e-4)


def test_calls_give_the_same_bits_however_they_are_cut(tmp_path):
    setup = setup_of("vit_digits", tmp_path, train__replicas=2, train__rates=(0.001, 0.01))
    with feeds.of(setup.replicas, setup.task.sources["train"], "devices") as feed:
        program = setup.program(feed)
        found = [taken(setup, feed, calls, program) for calls in ([9], [1] * 9, [2, 3, 4])]
    for state, losses in found[1:]:
        chex.assert_trees_all_equal(state, found[0][0])
        assert losses == found[0][1]


@pytest.mark.more
def test_one_program_serves_every_seed_rate_length_and_count(tmp_path):
    """The compiled text is the same, so a cache serves all of them."""
    texts = set()
    for seed, rate, length in ((0, 1e-3, 50), (7, 3e-2, 80)):
        changes = {"seed": seed, "optimizer__learning_rate": rate, "train__length": f"{length} steps"}
        setup = setup_of("vit_digits", tmp_path, **changes)
        with feeds.of(setup.replicas, setup.task.sources["train"], "") as feed, jax.set_mesh(setup.replicas.mesh):
            rows, _ = feed.take(0, 1)
            state = setup.replicas.abstract(setup.shapes)
            texts.add(setup.program(feed).lower(state, rows).as_text())
    assert len(texts) == 1


def test_what_does_not_fit_or_is_split_by_tokens_stays_on_the_host(tmp_path, monkeypatch):
    setup = setup_of("vit_digits", tmp_path)
    examples, mesh = setup.task.sources["train"], setup.replicas.mesh
    assert feeds.why_host(examples, mesh) == ""
    monkeypatch.setattr(feeds.memory, "limit", lambda mesh: 1000)
    assert "more than the 125 that may be held" in feeds.why_host(examples, mesh)
    with feeds.of(setup.replicas, setup.task.sources["train"], "") as feed:
        assert feed.name == "host"
    with feeds.of(setup.replicas, setup.task.sources["train"], "devices") as feed:  # as a run has chosen before
        assert feed.name == "devices"


@pytest.mark.more
def test_a_run_that_continues_keeps_the_place_of_its_data(tmp_path, monkeypatch):
    command = arguments(tmp_path / "run", train__length="4 steps")
    assert main.main(command) == 0
    opened, of = [], feeds.of
    monkeypatch.setattr(feeds, "of", lambda replicas, task, name: opened.append(name) or of(replicas, task, name))
    monkeypatch.setattr(feeds, "why_host", lambda *_, **__: "another machine has less memory")
    longer = arguments(tmp_path / "run", train__length="8 steps")
    assert main.main(longer) == 0
    assert opened == ["devices"]
