"""Search with caches against plain Python that runs every sequence through the whole model again."""

import functools
import itertools

import chex
import jax
import numpy as np
import pytest

from attention import UsageError
from tests.models import test_encoder_decoder as transformer
from tests.models import test_seq2seq as recurrent
from tests.sizes import more
from train.generation.decoding import translate
from train.generation.sampling import Sampling
from train.generation.search import Search

PAD, START, END, LONGEST = 0, 1, 2, 7
SOURCE, LENGTHS = np.array([[5, 3, 9, 4, 8, 7], [6, 10, 4, 0, 0, 0], [8, 0, 0, 0, 0, 0]]), np.array([6, 3, 1])
KEY = jax.random.key(0)


def run(model, params, search, source=SOURCE, lengths=LENGTHS, key=KEY, pad=PAD):
    return jax.device_get(translate(model, params["params"], source, lengths, search, key, START, END, pad)[0])


@functools.cache
def compiled(model):
    """Log-probabilities of whole forward passes, as a function of parameters and inputs."""
    return jax.jit(lambda *arrays: jax.nn.log_softmax(model.apply(*arrays)))


def forward(model, params):
    """Log-probabilities `(prefixes, V)` of the next token after prefixes of one length, from whole forward passes."""
    whole = functools.partial(compiled(model), params)

    def after(row, prefixes, batch=8):
        target = np.zeros((batch, LONGEST), np.int32)
        target[:, 0] = START
        for place, prefix in zip(target, prefixes, strict=False):
            place[1 : 1 + len(prefix)] = prefix
        rows = np.repeat(SOURCE[row : row + 1], batch, 0), np.repeat(LENGTHS[row : row + 1], batch, 0)
        return np.asarray(whole(*rows, target))[: len(prefixes), len(prefixes[0])]

    return after


def allowed(length, search, size):
    """Tokens that may be the last of a sequence of this length."""
    if length == search.max_length:
        return [END]
    return [
        token for token in range(size) if token not in (PAD, START) and (token != END or length >= search.min_length)
    ]


def greedy(after, row, search):
    sequence, score = [], 0.0
    while not sequence or sequence[-1] != END:
        scores = after(row, [sequence])[0]
        token = max(allowed(len(sequence) + 1, search, len(scores)), key=lambda token: scores[token])
        sequence, score = [*sequence, token], score + scores[token]
    return sequence, score


def beams(after, row, search):
    """Hugging Face's beam search, one list of sequences at a time."""
    k, running, finished = search.beams, [(0.0, [])], []
    for length in range(1, search.max_length + 1):
        following = after(row, [sequence for _, sequence in running])
        candidates = [
            (score + scores[token], score, [*sequence, token])
            for (score, sequence), scores in zip(running, following, strict=True)
            for token in allowed(length, search, len(scores))
        ]
        candidates = sorted(candidates, key=lambda one: -one[0])[: 2 * k]
        for score, before, sequence in candidates[:k]:
            if sequence[-1] == END:
                free = before if length == search.max_length else score
                finished.append((free / length**search.length_penalty, score, sequence))
        finished = sorted(finished, key=lambda one: -one[0])[:k]
        running = [(score, sequence) for score, _, sequence in candidates if sequence[-1] != END][:k]
        if not running or (len(finished) == k and running[0][0] / length**search.length_penalty <= finished[-1][0]):
            break
    return finished[0][2], finished[0][1]


def check_search(model, params, search):
    """Checks that the search finds what plain Python finds, and returns the lengths."""
    found = run(model, params, search)
    expected = [(greedy if search.beams == 1 else beams)(forward(model, params), row, search) for row in range(3)]
    for row, (sequence, score) in enumerate(expected):
        assert found.lengths[row] == len(sequence)
        assert found.tokens[row].tolist() == sequence + [PAD] * (found.tokens.shape[1] - len(sequence))
        np.testing.assert_allclose(found.scores[row], score, atol=2e-4)
    return {len(sequence) for sequence, _ in expected}


def build(seed=0, by=1.5, **changes):
    """A model and parameters that make the end likely, so that sequences have different lengths."""
    model, _ = transformer.build(output_bias=True, **changes)
    params = transformer.random_params(model, SOURCE[:, :4], LENGTHS, SOURCE[:, :4], seed=seed)["params"]
    return model, {"params": params | {"head_bias": params["head_bias"].at[END].add(by)}}


def test_greedy_is_that_of_whole_forward_passes():
    check_search(*build(by=0.0, decoder_attention="neural", decoder_depth=1), Search(1, 1.0, 5))


@pytest.mark.parametrize("mechanism", ["super|neural(pairs='unique')", more("linear|delta")])
def test_beams_take_caches_along(mechanism):
    check_search(*build(decoder_attention=mechanism, cross_attention=mechanism), Search(3, 1.0, 5))


@pytest.mark.more
def test_beams_take_recurrent_states_along():
    check_search(*recurrent.build(attention="luong_general", cell="lstm"), Search(3, 1.0, 5))


@pytest.mark.parametrize(
    "search", [Search(8, 0.6, 3), more(Search(4, 1.0, 6, min_length=4)), more(Search(3, -1.0, 6))], ids=repr
)
def test_beams_are_those_of_plain_python(search):
    ends = set().union(*(check_search(*build(seed), search) for seed in range(3)))
    assert len(ends) > 1


@pytest.mark.parametrize("search", [more(Search(3, 1.0, 7)), Search(1, 1.0, 7, sampling=Sampling())])
def test_a_padded_batch_gives_what_single_sentences_give(search):
    model, params = build(by=0.9)
    whole = run(model, params, search)
    assert len(set(whole.lengths.tolist())) > 1
    rows = range(1) if search.sampling.temperature else range(3)  # draws depend on the place too
    for row in rows:
        length = LENGTHS[row]
        alone = run(model, params, search, SOURCE[row : row + 1, :length], LENGTHS[row : row + 1])
        here = type(whole)(*(x[row : row + 1] for x in whole))
        chex.assert_trees_all_close(alone, here, atol=1e-4)
    other = run(model, params, search, np.where(SOURCE == 0, 9, SOURCE))
    chex.assert_trees_all_close(other, whole, atol=1e-5)


def test_draws_depend_on_the_key_and_the_place():
    model, params = build(by=0.0)
    search = Search(1, 1.0, 7, sampling=Sampling())
    same = np.repeat(SOURCE[:1], 3, 0), np.repeat(LENGTHS[:1], 3, 0)
    one = run(model, params, search, *same)
    assert len({tuple(row) for row in one.tokens.tolist()}) == 3
    chex.assert_trees_all_equal(run(model, params, search, *same), one)
    assert np.any(run(model, params, search, *same, key=jax.random.key(1)).tokens != one.tokens)
    assert not np.isin(one.tokens[one.tokens != PAD], [START]).any()


@pytest.mark.more
def test_enough_beams_find_the_best_of_all_sequences():
    """There are four words and the end, and three places, the last of which is the end's."""
    model, params = build(vocabularies=(11, 7))
    after, words = forward(model, params), [token for token in range(7) if token not in (PAD, START, END)]
    sequences = [[*some, END] for n in range(3) for some in itertools.product(words, repeat=n)]

    def ranked(row, sequence):
        gained = [after(row, [sequence[:place]])[0][token] for place, token in enumerate(sequence)]
        return sum(gained[: 2 if len(sequence) == 3 else None]) / len(sequence), sequence

    found = run(model, params, Search(20, 1.0, 3))
    for row in range(3):
        _, best = max(ranked(row, sequence) for sequence in sequences)
        assert found.tokens[row, : found.lengths[row]].tolist() == best


@pytest.mark.more
def test_search_stops_when_all_are_finished():
    model, params = build(by=8.0)
    for least in (1, 30):
        search = Search(3, 0.0, 30, min_length=least)
        found, count = translate(model, params["params"], SOURCE, LENGTHS, search, KEY, START, END, PAD)
        assert count >= found.lengths.max()
        assert count < 8 if least == 1 else count == 30


@pytest.mark.more
def test_padding_may_be_the_end():
    model, params = build()
    apart, same = (run(model, params, Search(3, 1.0, 7), pad=pad) for pad in (PAD, END))
    assert same.tokens.shape == apart.tokens.shape  # where the padding may be written, other sequences may be best
    for row, length in enumerate(same.lengths):
        assert np.flatnonzero(same.tokens[row] == END)[0] == length - 1
        assert np.all(same.tokens[row, length:] == END)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 0}, "beams must be at least 1"),
        ({"min_length": 9}, "min_length must be at most max_length=5, but it is 9"),
        ({"beams": 2, "sampling": Sampling()}, "2 beams are searched, not drawn"),
        ({"sampling": Sampling(0, repetition_penalty=2.0)}, "repetition_penalty=2.0 is for language models"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Search(**{"beams": 1, "length_penalty": 1.0, "max_length": 5} | options)


def test_what_has_a_fixed_length_is_not_exceeded():
    model, params = build(decoder_attention="super")
    with pytest.raises(UsageError, match="has 8"):
        run(model, params, Search(1, 1.0, 8))
