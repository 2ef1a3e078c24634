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

import chex
import pytest

from attention.errors import UsageError
from tests.train.data.streams import joined, stream, take
from train.data.text.section import MaskedTextData

KINDS = ["mixed images", "next tokens", "masked tokens", "last tokens of documents", "captions", "pairs in buckets"]


def sized(examples, **sizes):
    """Makes the same examples with changes to their section."""
    return dataclasses.replace(examples, data=dataclasses.replace(examples.data, **sizes))


@pytest.fixture
def mixed(make_examples):
    return make_examples("mixed images")["train"]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryKind:
    @pytest.fixture
    def examples(self, make_examples, kind):
        return make_examples(kind, batch_size=8, eval_batch_size=8)["train"]

    def test_processes_share_each_batch(self, examples):
        """Process k holds the k-th block of each global batch; in evaluation's last, some hold only padding."""
        shares = [take(examples.train_batches(5, k, 4), 6) for k in range(4)]
        chex.assert_trees_all_equal(take(examples.train_batches(5), 6), joined(*shares))
        shares = [take(examples.eval_batches(k, 4, most=21), 9) for k in range(4)]
        chex.assert_trees_all_equal(take(examples.eval_batches(most=21), 9), joined(*shares))

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
        chex.assert_trees_all_equal(whole, [*taken, *take(fresh, 5)])


@pytest.mark.parametrize("kind", ["mixed images", "masked tokens"])
def test_any_batch_size(make_examples, kind):
    """A batch may span several epochs."""
    examples = make_examples(kind)["train"]
    streams = [stream(sized(examples, batch_size=size).train_batches(5), 48 // size) for size in (6, 48)]
    chex.assert_trees_all_equal(*streams)


def test_batches_must_divide_among_processes(mixed):
    for make in (mixed.eval_batches, functools.partial(mixed.train_batches, 0)):
        with pytest.raises(UsageError, match=r"batch_size = 8 does not divide among 3 processes; use a multiple"):
            make(0, 3)


def test_every_epoch_is_another_permutation(mixed):
    epochs = stream(sized(mixed, batch_size=1).train_batches(1), 63)["index"].reshape(3, 21)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert all(sorted(epoch) == list(range(21)) for epoch in epochs)


def test_an_iterator_in_use_can_be_set_back(mixed):
    batches = mixed.train_batches(7)
    _, second, _ = (next(batches) for _ in range(3))
    batches.set_state({"taken": 1})
    chex.assert_trees_all_equal(second, *take(batches, 1))


def digest(options, state):
    """Hashes the next batches of masked text from a state on."""
    data, found = MaskedTextData(**options), hashlib.sha256()
    batches = data.examples(data.load())["train"].train_batches(seed=7)
    batches.set_state(state)
    for batch in take(batches, 3):
        for key in sorted(batch):
            found.update(batch[key].tobytes())
    return found.hexdigest()


RESUME = """
import json, sys
from tests.train.data.test_pipeline import digest
print(digest(*json.loads(sys.argv[1])))
"""


def test_a_fresh_process_with_an_empty_cache_goes_on_bit_by_bit(make_examples, run_python, tmp_path):
    """Subwords are trained again there, so training them must not depend on chance."""
    examples = make_examples("masked tokens", tokeniser="wordpiece(size=90)")["train"]
    options, state = dataclasses.asdict(examples.data), {"taken": 2}
    there = json.dumps([options | {"cache_dir": str(tmp_path / "other")}, state])
    assert run_python("-c", RESUME, there).stdout.strip() == digest(options, state)


@pytest.mark.more
def test_workers_do_not_show_and_when_one_is_killed_the_run_goes_on_without(mixed):
    expected = take(mixed.train_batches(5), 40)
    batches = sized(mixed, workers=2).train_batches(5)
    taken = [next(batches) for _ in range(3)]
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(UsageError, match=r"^A process that prepares data was killed, perhaps.* data.workers"):
        taken.extend(itertools.islice(batches, 100))
    rest = mixed.train_batches(5)
    rest.set_state(batches.get_state())
    batches.close()
    chex.assert_trees_all_equal(expected[: len(taken) + 1], [*taken, *take(rest, 1)])


def test_too_few_files_for_workers_are_said_before_any_starts(mixed, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_NOFILE: (24, 24)}.__getitem__)
    message = r"^data.workers=2 needs 60 more open files, but the limit of .* raise it \(ulimit -n .* fewer data"
    with pytest.raises(UsageError, match=message):
        next(sized(mixed, workers=2).train_batches(5))


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OSError("[Errno 24] Too many open files"), UsageError, r"\(Too many open files\); raise that"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), UsageError, r"\(Resource temporarily unavaila"),
        (RuntimeError("terminated unexpectedly"), UsageError, "^A process that prepares data was killed"),
        (OSError("a broken file"), OSError, "^a broken file$"),
    ],
)
def test_what_is_short_is_said_and_other_errors_stay(mixed, monkeypatch, error, kind, message):
    def failing():
        raise error
        yield

    batches = mixed.train_batches(0)
    monkeypatch.setattr(batches, "_prefetching", failing)
    with pytest.raises(kind, match=message):
        next(batches)
