"""Decoding of language models against whole forward passes."""

import jax
import numpy as np
import pytest

from attention import UsageError
from models.mechanisms import MECHANISMS
from tests.models.test_gpt import build
from tests.sizes import once
from train.generation.decoding import Sampling, generate

GREEDY = Sampling(temperature=0)
PROMPTS = [np.array([3, 1, 4, 1, 5]), np.array([9, 2]), np.array([6, 5, 3])]


def again_and_again(model, params, tokens, penalty=1.0):
    """Greedy without a cache: each whole sequence through the model for each new token."""
    forward = jax.jit(lambda padded: model.apply(params, padded))

    def continued(prompt):
        sequence = prompt.tolist()
        for _ in range(tokens):
            padded = np.zeros((1, 12), np.int32)  # causal: what comes after changes nothing
            padded[0, : len(sequence)] = sequence
            logits = np.array(forward(padded)[0, len(sequence) - 1])
            for token in set(sequence):
                logits[token] *= penalty if logits[token] < 0 else 1 / penalty
            sequence.append(int(np.argmax(logits)))
        return sequence

    return [continued(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "attention",
    once([*MECHANISMS, "neural|delta", "super(per_head=True)", "gaussian(decay=0.1)"], ["super", "neural|delta"]),
)
def test_greedy_is_the_argmax_of_whole_forward_passes(attention):
    model, params = build(attention=attention, depth=1 + ("|" in attention))
    got = generate(model, params["params"], PROMPTS, 4, GREEDY, jax.random.key(0))
    assert [row.tolist() for row in got] == again_and_again(model, params, 4)


@pytest.mark.more
@pytest.mark.parametrize("positions", once(["sinusoidal", "rotary", "none"], ["rotary"]))
def test_greedy_is_the_argmax_whatever_the_positions(positions):
    model, params = build(positions=positions)
    got = generate(model, params["params"], PROMPTS, 4, GREEDY, jax.random.key(0))
    assert [row.tolist() for row in got] == again_and_again(model, params, 4)


@pytest.mark.more
def test_a_continuation_depends_on_its_own_prompt_place_and_key():
    model, params = build()

    def sample(prompts, seed):
        return [x.tolist() for x in generate(model, params["params"], prompts, 6, Sampling(), jax.random.key(seed))]

    together = sample(PROMPTS, 0)
    assert sample(PROMPTS, 0) == together
    assert sample(PROMPTS[:1], 0) == together[:1]
    assert sample(PROMPTS, 1) != together
    twice = sample([PROMPTS[0]] * 2, 0)
    assert twice[0] != twice[1]


def test_sequences_stop_after_the_end():
    model, params = build()
    whole = generate(model, params["params"], PROMPTS, 6, GREEDY, jax.random.key(0))
    end = int(whole[0][len(PROMPTS[0]) + 2])
    for prompt, row, free in zip(
        PROMPTS, generate(model, params["params"], PROMPTS, 6, GREEDY, jax.random.key(0), end), whole, strict=True
    ):
        new = free[len(prompt) :].tolist()
        stop = len(prompt) + (new.index(end) + 1 if end in new else 6)
        assert row.tolist() == free[:stop].tolist()


@pytest.mark.more
def test_a_watch_sees_all_tokens_as_they_come_and_may_end_a_sequence():
    model, params = build(positions="rotary", attention="linear")
    whole = generate(model, params["params"], PROMPTS, 20, Sampling(), jax.random.key(0))
    seen = []

    def watch(rows):
        seen.append(rows)
        return [False, len(rows[1]) >= 9, False]

    watched = generate(model, params["params"], PROMPTS, 20, Sampling(), jax.random.key(0), watch=watch)
    assert [row.tolist() for row in watched] == [whole[0].tolist(), whole[1][:10].tolist(), whole[2].tolist()]
    assert [max(map(len, rows)) for rows in seen] == [10, 18, 25]
    assert all(row.tolist() == end.tolist()[: len(row)] for rows in seen for row, end in zip(rows, whole, strict=True))


def test_the_penalty_of_repetition_counts_prompts_and_what_was_drawn():
    model, params = build()
    sampling = Sampling(temperature=0, repetition_penalty=1.8)
    got = generate(model, params["params"], PROMPTS, 6, sampling, jax.random.key(0))
    assert [row.tolist() for row in got] == again_and_again(model, params, 6, penalty=1.8)
    assert [row.tolist() for row in got] != again_and_again(model, params, 6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": "learned"}, "13 tokens were asked for, but positions were learned for 12"),
        ({"positions": "none", "attention": "super"}, "at most 12 tokens, but this one has 13"),
        ({"positions": "none", "attention": "positional"}, "12"),
    ],
)
def test_what_has_a_fixed_length_is_not_exceeded(changes, message):
    model, params = build(**changes)
    with pytest.raises(UsageError, match=message):
        generate(model, params["params"], PROMPTS, 8, GREEDY, jax.random.key(0))


def test_what_has_no_fixed_length_goes_on():
    model, params = build(positions="rotary", attention="linear")
    rows = generate(model, params["params"], PROMPTS, 20, GREEDY, jax.random.key(0))
    assert [len(row) for row in rows] == [25, 22, 23]


@pytest.mark.parametrize(("prompts", "tokens"), [([], 3), ([np.array([], int)], 3), (PROMPTS, 0)])
def test_nothing_to_continue_is_refused(prompts, tokens):
    model, params = build()
    with pytest.raises(UsageError, match=r"at least one token|At least one token"):
        generate(model, params["params"], prompts, tokens, GREEDY, jax.random.key(0))
