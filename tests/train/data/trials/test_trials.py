"""A plain generator writes the same sequences as each trial, and asks the same questions."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from tests.train.data.trials import plain
from train import loading
from train.data import draws, trials
from train.data.draws import Draws
from train.data.trials.sizes import CPU, PUBLISHED
from train.data.trials.state import products

SPECS = (
    "stacked_recall(size=6, keys=16, values=5)",
    "stacked_recall(size=6, least=4, rewritten=3, keys=16, values=5)",
    "recall(size=8, least=2, keys=16, values=5, fillers=7, context=16)",
    "in_context_recall(size=20)",
    "in_context_recall(size=12, least=6, noise=0.3)",
    "fuzzy_recall(size=10, least=4)",
    "copying(size=6, least=3)",
    "selective_copying(size=4, least=2, context=16)",
    "induction(size=12, least=5)",
    "compression(size=6)",
    "memorisation(size=4, least=2)",
    "words(size=9, least=3, group='S3')",
)
NUMBER = 48


def made(trial, index):
    draw = Draws(draws.TRIAL, 0, index)
    size = trial.drawn_size(draw)
    return trial.example(draw, size, trial.size) | {"size": size}


@pytest.fixture(params=SPECS, scope="module")
def trial(request):
    return trials.parse(request.param)


@pytest.fixture(scope="module")
def examples(trial):
    return [made(trial, index) for index in range(NUMBER)]


def test_a_device_makes_what_the_host_makes(trial, examples):
    there = jax.jit(jax.vmap(lambda index: made(trial, index)))(jnp.arange(NUMBER, dtype=jnp.uint32))
    for index, here in enumerate(examples):
        for name, value in here.items():
            np.testing.assert_array_equal(there[name][index], value, err_msg=f"{name} of {index}")


def test_a_plain_generator_makes_the_same_sequences_of_the_stated_shapes(trial, examples):
    [name] = [name for name, made in trials.TRIALS.items() if made is type(trial)]
    write, length = getattr(plain, name), trial.length(trial.size)
    assert {int(example["size"]) for example in examples} <= set(range(trial.least or trial.size, trial.size + 1))
    for index, example in enumerate(examples):
        draw = Draws(draws.TRIAL, 0, index)
        tokens, answers = write(trial, draw, trial.drawn_size(draw))
        assert example["tokens"].tolist()[: len(tokens)] == tokens
        assert not example["tokens"][len(tokens) :].any()
        assert {int(n): int(example["targets"][n]) for n in np.flatnonzero(example["weight"])} == answers
        assert example["tokens"].shape == (length, trial.channels)
        assert example["targets"].shape == example["weight"].shape == (length,)
        assert 0 <= example["tokens"].min() <= example["tokens"].max() < trial.vocabulary


def test_guesses_come_to_chance(trial):
    """Targets are spread evenly over as many answers as chance implies."""
    found = [made(trial, index) for index in range(400)]
    targets = np.concatenate([example["targets"][example["weight"] > 0] for example in found])
    counts = np.bincount(targets)[np.bincount(targets) > 0]
    assert len(counts) <= round(1 / trial.chance)
    assert counts.max() / counts.sum() < trial.chance + 5 * math.sqrt(trial.chance / len(found))


@pytest.mark.parametrize(("config", "sizes"), [("cpu", CPU), ("published", PUBLISHED)])
def test_sizes_make_tasks_of_which_each_trial_has_one(config, sizes):
    tried = {spec.partition("(")[0] for spec in SPECS}
    assert {size.source.partition("(")[0] for size in sizes.values()} == tried == trials.TRIALS.keys()
    for name in sizes:
        loaded = loading.load(f"configs/trial_{config}.py:{name}")
        assert loading.validate(loaded.to_dict()).data.trial == trials.parse(sizes[name].source)
    with pytest.raises(UsageError, match="Did you mean 'parity'"):
        loading.load(f"configs/trial_{config}.py:paritys")


@pytest.mark.parametrize(("group", "order", "abelian"), [("Z7", 7, True), ("S3", 6, False), ("A4", 12, False)])
def test_groups_are_groups(group, order, abelian):
    table, some = products(group), range(order)
    assert table.shape == (order, order)
    np.testing.assert_array_equal(np.sort(table, axis=1), np.tile(np.arange(order), (order, 1)))
    np.testing.assert_array_equal(table[0], np.arange(order))
    assert all(table[table[c, b], a] == table[c, table[b, a]] for a in some for b in some for c in some)
    assert np.array_equal(table, table.T) == abelian


def test_of_longer_words_only_what_is_beyond_the_trained_length_counts():
    """So accuracy at a size is about states that training never reached."""
    trial = trials.parse("words(size=4, group='S3', tested=(12,))")
    found = trial.example(Draws(draws.TRIAL, 0, 5), 9, 12)
    _, answers = plain.words(dataclasses.replace(trial, size=12, tested=()), Draws(draws.TRIAL, 0, 5), 9)
    asked = {int(place): int(found["targets"][place]) for place in np.flatnonzero(found["weight"])}
    assert asked == {place: answer for place, answer in answers.items() if place >= 4}
