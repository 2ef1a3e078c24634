"""Every kind of examples is a stream that depends on seed and position alone, whoever makes it and resumes it."""

import dataclasses
import errno
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import pickle
import resource

import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from attention.errors import UsageError
from tests.sizes import more
from tests.train.data.streams import assert_same, stream, take

ORDERED = ["mixed images", "next tokens", "masked tokens", "last tokens of documents", "captions"]
KINDS = [*ORDERED, "pairs in buckets"]


def sized(examples, **sizes):
    """Makes the same examples with changes to their section."""
    return dataclasses.replace(examples, data=dataclasses.replace(examples.data, **sizes))


def whole_batches(shares):
    """Joins the processes' shares to whole batches."""
    return [{name: np.concatenate([share[name] for share in of]) for name in of[0]} for of in zip(*shares, strict=True)]


@pytest.fixture
def mixed(make_examples):
    return make_examples("mixed images")["train"]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    @pytest.fixture
    def examples(self, make_examples, kind):
        return make_examples(kind, batch_size=8, eval_batch_size=8)["train"]

    @pytest.mark.parametrize("processes", [2, 8])
    def test_processes_share_each_batch(self, examples, processes):
        """Process k holds the k-th block of each global batch; in evaluation's last, some hold only padding."""
        shares = [take(examples.train_batches(5, k, processes), 6) for k in range(processes)]
        for expected, batch in zip(take(examples.train_batches(5), 6), whole_batches(shares), strict=True):
            assert_same(expected, batch)
        shares = [take(examples.eval_batches(k, processes, most=21), 9) for k in range(processes)]
        for expected, batch in zip(take(examples.eval_batches(most=21), 9), whole_batches(shares), strict=True):
            assert_same(expected, batch)

    def test_a_fresh_iterator_goes_on_where_the_state_was_taken(self, examples):
        """Another seed has another order."""
        whole = take(examples.train_batches(7), 9)
        assert whole[0]["index"].tobytes() != take(examples.train_batches(8), 1)[0]["index"].tobytes()
        stopped = examples.train_batches(7)
        taken = [next(stopped) for _ in range(4)]
        state = json.loads(json.dumps(stopped.get_state()))
        stopped.close()
        fresh = pickle.loads(pickle.dumps(examples)).train_batches(7)
        fresh.set_state(state)
        for expected, batch in zip(whole, [*taken, *take(fresh, 5)], strict=True):
            assert_same(expected, batch)

    def test_evaluation_has_every_example_once(self, examples):
        batches = list(examples.eval_batches())
        indices = np.concatenate([batch["index"] for batch in batches])
        assert len(np.unique(indices[indices >= 0])) == examples.eval_length == np.count_nonzero(indices >= 0)
        for batch in batches:
            assert not batch["weight"][batch["index"] < 0].any()
            assert {len(array) for array in batch.values()} == {8}


@pytest.mark.parametrize("kind", ORDERED)
def test_any_batch_size(make_examples, kind):
    examples = make_examples(kind)["train"]
    streams = [stream(sized(examples, batch_size=size).train_batches(5), 48 // size) for size in (1, 6, 48)]
    assert_same(streams[0], streams[1])
    assert_same(streams[0], streams[2])


def test_batches_must_divide_among_processes(mixed):
    for make in (mixed.eval_batches, functools.partial(mixed.train_batches, 0)):
        with pytest.raises(UsageError, match=r"batch_size = 8 does not divide among 3 processes; use a multiple"):
            make(0, 3)


@pytest.mark.more
def test_workers_do_not_show(make_examples):
    """A run may start with workers and go on without them: the state is the same."""
    examples = make_examples("masked tokens")["train"]
    expected = take(examples.train_batches(5), 6)
    working = sized(examples, workers=2)
    batches = working.train_batches(5)
    first = [next(batches) for _ in range(3)]
    rest = examples.train_batches(5)
    rest.set_state(batches.get_state())
    batches.close()
    for batch, again in zip(expected, [*first, *take(rest, 3)], strict=True):
        assert_same(batch, again)
    for batch, again in zip(examples.eval_batches(), working.eval_batches(), strict=True):
        assert_same(batch, again)


@pytest.mark.parametrize("kind", ["mixed images", "last tokens of documents"])
def test_every_epoch_is_a_permutation(make_examples, kind):
    examples = sized(make_examples(kind)["train"], batch_size=1)
    length = len(examples)
    epochs = stream(examples.train_batches(1), 4 * length)["index"].reshape(4, length)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(sorted(epoch) == list(range(length)) for epoch in epochs)


def test_a_batch_may_be_larger_than_the_source(mixed):
    [batch] = take(sized(mixed, batch_size=42).train_batches(0), 1)
    np.testing.assert_array_equal(np.bincount(batch["index"]), 2)


def test_an_iterator_in_use_can_be_set_back_until_it_is_closed(mixed):
    batches = mixed.train_batches(7)
    first, second, _ = (next(batches) for _ in range(3))
    for taken, expected in ((1, second), (0, first)):
        batches.set_state({"taken": taken})
        assert_same(expected, next(batches))
    batches.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(batches)


def test_orbax_saves_and_restores_an_iterator(mixed, tmp_path):
    batches, fresh = mixed.train_batches(7), mixed.train_batches(7)
    next(batches)
    with ocp.training.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save_checkpointables(1, {"data": batches})
        checkpointer.load_checkpointables(1, {"data": fresh})
    assert_same(next(batches), next(fresh))
    fresh.close()
    batches.close()


RESUME = """
import hashlib, itertools, json, sys
from train.data.text.section import MaskedTextData
options, state = json.loads(sys.argv[1])
data = MaskedTextData(**options)
batches = data.examples(data.load())["train"].train_batches(seed=7)
batches.set_state(state)
digest = hashlib.sha256()
for batch in itertools.islice(batches, 3):
    for key in sorted(batch):
        digest.update(batch[key].tobytes())
batches.close()
print(digest.hexdigest())
"""


@pytest.mark.parametrize("tokeniser", ["bpe(size=300)", more("wordpiece(size=90)")])
def test_a_fresh_process_with_an_empty_cache_goes_on_bit_by_bit(make_examples, run_python, tmp_path, tokeniser):
    """Subwords are trained again there, so training them must not depend on chance."""
    examples = make_examples("masked tokens", tokeniser=tokeniser)["train"]
    batches = examples.train_batches(7)
    next(batches), next(batches)
    state, expected = batches.get_state(), hashlib.sha256()
    for batch in take(batches, 3):
        for key in sorted(batch):
            expected.update(batch[key].tobytes())
    options = dataclasses.asdict(examples.data) | {"cache_dir": str(tmp_path / "other")}
    assert run_python("-c", RESUME, json.dumps([options, state])).stdout.strip() == expected.hexdigest()


class TestWorkersThatEnd:
    """What the operating system does to workers becomes one sentence, on which the loop can save and stop."""

    @pytest.fixture
    def batches(self, mixed):
        batches = sized(mixed, workers=2).train_batches(5)
        yield batches
        batches.close()

    @pytest.mark.more
    def test_a_killed_worker(self, mixed, batches):
        next(batches)
        for worker in multiprocessing.active_children():
            worker.kill()
        with pytest.raises(UsageError, match=r"^A process that prepares data was killed, perhaps.* data.workers"):
            list(itertools.islice(batches, 100))
        state = batches.get_state()
        rest = mixed.train_batches(5)
        for iterator in (rest, batches):
            iterator.set_state(state)
        assert_same(next(rest), next(batches))
        rest.close()

    def test_too_few_files(self, batches, monkeypatch):
        monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: (24, 24)}.__getitem__)
        message = r"^data.workers=2 needs 60 more open files, but the limit of .* raise it \(ulimit -n .* fewer data"
        with pytest.raises(UsageError, match=message):
            next(batches)

    @pytest.mark.parametrize(
        ("error", "kind", "message"),
        [
            (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), UsageError, r"\(Too many open files\); raise that"),
            (OSError("[Errno 24] Too many open files"), UsageError, r"\(Too many open files\)"),
            (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), UsageError, r"\(Resource temporarily unavaila"),
            (OSError("a broken file"), OSError, "^a broken file$"),
        ],
    )
    def test_what_is_short_is_said_and_other_errors_stay(self, mixed, monkeypatch, error, kind, message):
        batches = mixed.train_batches(0)
        monkeypatch.setattr(batches, "_prefetching", lambda: _failing(error))
        with pytest.raises(kind, match=message):
            next(batches)


def _failing(error):
    """Yields nothing; a generator can be closed, as Grain's iterators can."""
    raise error
    yield
