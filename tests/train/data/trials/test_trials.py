"""Whoever knows a trial's rule answers everything, and a plain generator writes the same sequences."""

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
from train.data.trials.state import elements, products

SPECS = (
    "stacked_recall(size=6, keys=16, values=5)",
    "stacked_recall(size=6, least=4, rewritten=3, keys=16, values=5)",
    "recall(size=4, least=2, keys=16, values=5, fillers=7, context=24)",
    "in_context_recall(size=20)",
    "in_context_recall(size=12, least=6, noise=0.3)",
    "fuzzy_recall(size=10, least=4)",
    "copying(size=6, least=3)",
    "selective_copying(size=4, least=2, context=16)",
    "induction(size=12, least=5)",
    "compression(size=6)",
    "memorisation(size=4, least=2)",
    "words(size=9, least=3)",
    "words(size=9, group='Z5')",
    "words(size=9, group='S5')",
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


def test_examples_have_the_stated_shapes_and_sizes(trial, examples):
    length = trial.length(trial.size)
    sizes = {int(example["size"]) for example in examples}
    assert sizes <= set(range(trial.least or trial.size, trial.size + 1))
    assert len(sizes) > 1 or not trial.least
    for example in examples:
        assert example["tokens"].shape == (length, trial.channels)
        assert example["targets"].shape == example["weight"].shape == (length,)
        assert set(np.unique(example["weight"])) <= {0.0, 1.0}
        assert example["tokens"].min() >= 0
        assert max(example["tokens"].max(), example["targets"].max()) < trial.vocabulary


def test_a_plain_generator_makes_the_same(trial):
    write = getattr(plain, spelled(trial))
    for index in range(NUMBER):
        draw = Draws(draws.TRIAL, 0, index)
        size = trial.drawn_size(draw)
        tokens, answers = write(trial, draw, size)
        example = made(trial, index)
        assert example["tokens"].tolist()[: len(tokens)] == tokens
        assert not example["tokens"][len(tokens) :].any()
        assert {int(n): int(example["targets"][n]) for n in np.flatnonzero(example["weight"])} == answers


def spelled(trial):
    return next(name for name, cls in trials.TRIALS.items() if cls is type(trial))


def test_one_who_knows_the_rule_answers_everything(trial, examples):
    solve = SOLVERS[spelled(trial)]
    asked = 0
    for example in examples:
        there = np.flatnonzero(example["weight"])
        answers = solve(trial, example["tokens"].tolist(), int(example["size"]))
        assert {place: int(example["targets"][place]) for place in there} == answers
        asked += len(there)
    assert asked >= NUMBER


def test_guesses_come_to_chance(trial):
    """Targets are spread evenly over as many answers as chance implies."""
    found = [made(trial, index) for index in range(400)]
    targets = np.concatenate([example["targets"][example["weight"] > 0] for example in found])
    counts = np.bincount(targets)[np.bincount(targets) > 0]
    assert len(counts) <= round(1 / trial.chance)
    most = counts.max() / counts.sum()
    assert most < trial.chance + 5 * math.sqrt(trial.chance / len(found))


def stacked_recall(trial, tokens, size):
    """A key that stands alone asks for its last value."""
    known, answers = {}, {}
    for place, (key, value) in enumerate(tokens):
        if value:
            known[key] = value
        elif key:
            answers[place] = known[key]
    assert len(known) == size == len(answers)
    return answers


def recall(trial, tokens, size):
    tokens = [token for (token,) in tokens]
    known = {tokens[2 * pair]: tokens[2 * pair + 1] for pair in range(size)}
    assert len(known) == size
    return {place: known[token] for place, token in enumerate(tokens) if place >= 2 * size and token < trial.keys}


def in_context_recall(trial, tokens, size):
    known, answers = {}, {}
    for pair in range(size):
        (key,), (value,) = tokens[2 * pair : 2 * pair + 2]
        if key < trial.keys:
            if key in known:
                answers[2 * pair] = known[key]
                assert known[key] == value
            known[key] = value
    return answers


def fuzzy_recall(trial, tokens, size):
    """Reads pairs token by token: a key up to the sign, then a value up to the next key."""
    known, answers, key, value, first = {}, {}, [], None, 0
    read = [token for (token,) in tokens if token] + [2]  # a key begins, which ends the last value
    pairs = 0
    for place, token in enumerate(read):
        of_key = 2 <= token < 2 + trial.symbols
        if of_key and value is not None:
            pairs += 1
            if tuple(key) in known:
                assert known[tuple(key)] == value
                answers |= {first + number: part for number, part in enumerate(value)}
            known[tuple(key)] = value
            key, value = [], None
        if of_key:
            key.append(token)
        elif token == 1:
            value, first = [], place
        else:
            value.append(token)
    assert pairs == size
    return answers


def copying(trial, tokens, size):
    tokens = [token for (token,) in tokens]
    assert tokens.index(1) == size
    assert tokens[size + 1 : 2 * size] == tokens[: size - 1]
    return {size + number: symbol for number, symbol in enumerate(tokens[:size])}


def selective_copying(trial, tokens, size):
    tokens = [token for (token,) in tokens]
    sign = tokens.index(1)
    symbols = [token for token in tokens[:sign] if token]
    assert len(symbols) == size
    assert not any(tokens[sign + 1 :])
    return {sign + 1 + number: symbol for number, symbol in enumerate(symbols)}


def induction(trial, tokens, size):
    tokens = [token for (token,) in tokens]
    first, last = (place for place, token in enumerate(tokens) if token == 1)
    assert last == size - 1
    return {last: tokens[first + 1]}


def compression(trial, tokens, size):
    return {place: token for place, (token,) in enumerate(tokens[:-1])}


def memorisation(trial, tokens, size):
    """A key has the same answer in all sequences, and two keys have different ones."""
    facts = dict(zip(range(trial.facts), draws.permutation(trial.facts, draws.TRIAL, 3).tolist(), strict=True))
    assert sorted(facts.values()) == list(range(trial.facts))
    keys = [key for (key,) in tokens[::2]][:size]
    return {2 * number + 1: 2 + trial.facts + facts[key - 2] for number, key in enumerate(keys)}


def words(trial, tokens, size):
    """Applies one permutation after the other to the numbers themselves."""
    members, answers = elements(trial.group), {}
    state = members[0]
    for place, (token,) in enumerate(tokens[:size]):
        state = tuple(members[token - 1][x] for x in state)
        answers[place] = 1 + members.index(state)
    return answers


SOLVERS = {name: globals()[name] for name in trials.TRIALS}


@pytest.mark.parametrize(("config", "sizes"), [("cpu", CPU), ("published", PUBLISHED)])
def test_sizes_make_tasks_of_which_each_trial_has_one(config, sizes):
    """A mistake in the name of a trial is one sentence."""
    tried = {spec.partition("(")[0] for spec in SPECS}
    assert {size.source.partition("(")[0] for size in sizes.values()} == tried == trials.TRIALS.keys()
    for name in sizes:
        made = loading.load(f"configs/trial_{config}.py:{name}")
        assert loading.validate(made.to_dict()).data.trial == trials.parse(sizes[name].source)
    with pytest.raises(UsageError, match="Did you mean 'parity'"):
        loading.load(f"configs/trial_{config}.py:paritys")


@pytest.mark.parametrize(
    ("group", "order", "abelian"),
    [("Z2", 2, True), ("Z7", 7, True), ("S3", 6, False), ("A4", 12, False), ("A5", 60, False), ("S5", 120, False)],
)
def test_groups_are_groups(group, order, abelian):
    table = products(group)
    assert table.shape == (order, order)
    np.testing.assert_array_equal(np.sort(table, axis=1), np.tile(np.arange(order), (order, 1)))
    np.testing.assert_array_equal(table[0], np.arange(order))
    some = range(0, order, max(1, order // 12))
    assert all(table[table[c, b], a] == table[c, table[b, a]] for a in some for b in some for c in some)
    assert np.array_equal(table, table.T) == abelian


def test_a_sequence_of_recall_is_as_long_as_its_own_size_asks_for():
    """Arrays are as long as the largest tested size needs."""
    trial = trials.parse("recall(size=4, context=16, keys=64)")
    for size, length in ((2, 16), (4, 16), (8, 32)):
        for index in range(20):
            made = trial.example(Draws(draws.TRIAL, 0, index), size, 16)
            assert len(made["weight"]) == 64
            assert not made["tokens"][length:].any()
            assert made["weight"][length:].sum() == 0
            assert made["weight"].sum() == size


def test_of_longer_words_only_what_is_beyond_the_trained_length_counts():
    """So accuracy at a size is about states that training never reached."""
    trial = trials.parse("words(size=4, group='S3', tested=(9,))")
    found = trial.example(Draws(draws.TRIAL, 0, 5), 9, 12)
    assert np.flatnonzero(found["weight"]).tolist() == [4, 5, 6, 7, 8]
    answers = words(trial, found["tokens"].tolist(), 9)
    assert [answers[place] for place in range(4, 9)] == found["targets"][4:9].tolist()


def test_questions_of_recall_come_soon_after_the_pairs():
    """The slots of questions follow a power law; with power 1 they are uniform."""

    def middle(power):
        trial = trials.parse(f"recall(size=4, context=128, power={power})")
        found = [made(trial, index)["weight"] for index in range(200)]
        return np.mean([np.flatnonzero(weight).mean() for weight in found])

    assert middle(1.0) == pytest.approx((8 + 126) / 2, abs=2)
    # Race of 4 among 60 slots with weights 1/j: by an independent simulation of numpy's own draws.
    weights = np.arange(1, 61) ** (0.01 - 1)
    generator = np.random.default_rng(0)
    slots = [generator.choice(60, 4, replace=False, p=weights / weights.sum()).mean() for _ in range(4000)]
    assert middle(0.01) == pytest.approx(8 + 2 * np.mean(slots), abs=2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("recal(size=3)", "Did you mean 'recall'"),
        ("recall(size=4, least=5)", "least must be 0 or a size up to size=4, but it is 5"),
        ("copying(tested=(32,))", "tested must be other sizes than size=32"),
        ("recall(size=65)", "keys=64 are fewer than the pairs"),
        ("stacked_recall(size=4, rewritten=5)", "rewritten=5 is more than the least number of pairs"),
        ("selective_copying(size=40)", "context=64 does not hold the symbols twice"),
        ("compression(tested=(4,))", "compression has one size"),
        ("words(group='D4')", "group must be Z2 to Z64, S2 to S5 or A3 to A5, but it is 'D4'"),
        ("words(group='A2')", "group must be Z2 to Z64"),
        ("induction(least=2)", "A size must be at least 3, to have an answer, but one is 2"),
        ("in_context_recall(size=200000)", "A size must be at most 16384"),
    ],
)
def test_mistakes_are_one_sentence(spec, message):
    with pytest.raises(UsageError, match=message.replace("(", r"\(").replace(")", r"\)")):
        trials.parse(spec)
