"""Decoding of language models against whole forward passes."""

import jax
import numpy as np
import pytest

from attention import UsageError
from tests.models.test_gpt import build
from train.generation.decoding import Sampling, generate

GREEDY, KEY = Sampling(temperature=0), jax.random.key(0)
PROMPTS = [np.array([3, 1, 4, 1, 5]), np.array([9, 2]), np.array([6, 5, 3])]


def written(model, params, tokens, sampling=GREEDY, key=KEY, prompts=PROMPTS, **options):
    return [row.tolist() for row in generate(model, params["params"], prompts, tokens, sampling, key, **options)]


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


@pytest.mark.parametrize("attention", ["super", "neural|delta"])
def test_greedy_is_the_argmax_of_whole_forward_passes(attention):
    """The contract of layers shows that every mechanism's cache gives what the whole sequence gives."""
    model, params = build(attention=attention, depth=1 + ("|" in attention))
    assert written(model, params, 4, GREEDY) == again_and_again(model, params, 4)


@pytest.mark.more
def test_a_continuation_depends_on_its_own_prompt_place_and_key():
    model, params = build()

    def sample(prompts=PROMPTS, key=KEY):
        return written(model, params, 6, Sampling(), key, prompts)

    together = sample()
    assert sample() == together
    assert sample(PROMPTS[:1]) == together[:1]
    assert sample(key=jax.random.key(1)) != together
    assert len(set(map(tuple, sample([PROMPTS[0]] * 2)))) == 2


def test_sequences_stop_after_the_end():
    model, params = build()
    whole = written(model, params, 6)
    end = whole[0][len(PROMPTS[0]) + 2]
    for prompt, row, free in zip(PROMPTS, written(model, params, 6, end=end), whole, strict=True):
        new = free[len(prompt) :]
        assert row == free[: len(prompt) + (new.index(end) + 1 if end in new else 6)]


@pytest.mark.more
def test_a_watch_sees_all_tokens_as_they_come_and_may_end_a_sequence():
    model, params = build(positions="rotary", attention="linear")
    whole = written(model, params, 20, Sampling())
    seen = []

    def watch(rows):
        seen.append(rows)
        return [False, len(rows[1]) >= 9, False]

    assert written(model, params, 20, Sampling(), watch=watch) == [whole[0], whole[1][:10], whole[2]]
    assert [max(map(len, rows)) for rows in seen] == [10, 18, 25]
    assert all(row.tolist() == end[: len(row)] for rows in seen for row, end in zip(rows, whole, strict=True))


def test_the_penalty_of_repetition_counts_prompts_and_what_was_drawn():
    model, params = build()
    sampling = Sampling(temperature=0, repetition_penalty=1.8)
    got = written(model, params, 6, sampling)
    assert got == again_and_again(model, params, 6, penalty=1.8) != again_and_again(model, params, 6)


@pytest.mark.parametrize(
    ("changes", "prompts", "tokens", "message"),
    [
        ({"positions": "learned"}, PROMPTS, 8, "13 tokens were asked for, but positions were learned for 12"),
        ({"positions": "none", "attention": "super"}, PROMPTS, 8, "at most 12 tokens, but this one has 13"),
        ({}, [np.array([], int)], 3, "Every prompt needs at least one token"),
        ({}, PROMPTS, 0, "At least one token must be asked for, not 0"),
    ],
)
def test_mistakes_are_one_sentence(changes, prompts, tokens, message):
    model, params = build(**changes)
    with pytest.raises(UsageError, match=message):
        written(model, params, tokens, prompts=prompts)
