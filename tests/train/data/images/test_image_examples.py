import dataclasses
import errno
import hashlib
import itertools
import json
import multiprocessing
import os
import resource

import grain
import numpy as np
import pytest
from orbax.checkpoint import v1 as ocp

from attention.errors import UsageError
from tests.train.data.streams import assert_same, stream, take
from train.data import pipeline
from train.data.images import transforms
from train.data.images.examples import ImageExamples

AUGMENT = "pad_crop(padding=2)|flip|normalise(mean=0.5, std=0.25)"


def train_batches(images, data, seed, *share):
    return ImageExamples(data, images).train_batches(seed, *share)


def eval_batches(images, data, *share):
    return ImageExamples(data, images).eval_batches(*share)


@pytest.fixture
def augmented(defaults):
    return dataclasses.replace(defaults, train_transforms=AUGMENT)


@pytest.fixture
def mixed(augmented):
    return dataclasses.replace(augmented, mixup=0.4)


class TestOrder:
    def test_every_epoch_is_a_permutation(self, photos, defaults):
        indices = stream(train_batches(photos, defaults, seed=3), 21)["index"]
        epochs = indices.reshape(8, 21)
        for epoch in epochs:
            assert sorted(epoch) == list(range(21))
        assert len({tuple(epoch) for epoch in epochs}) == 8

    @pytest.mark.more
    def test_seeds_give_different_orders(self, photos, defaults):
        """Neighbouring seeds must not give the same order an epoch later either, as adding them to an epoch would."""
        orders = [stream(train_batches(photos, defaults, seed), 42)["index"].reshape(16, 21) for seed in range(4)]
        assert len({tuple(epoch) for order in orders for epoch in order}) == 4 * 16

    def test_examples_are_those_of_their_index(self, photos, defaults):
        [batch] = take(train_batches(photos, defaults, seed=0), 1)
        for index, image, label in zip(batch["index"], batch["image"], batch["label"], strict=True):
            np.testing.assert_allclose(image, photos[index]["image"] / 255, atol=1e-7)
            assert label == photos[index]["label"]

    def test_types_and_shapes(self, photos, mixed):
        [batch] = take(train_batches(photos, mixed, seed=0), 1)
        assert {key: (value.dtype.name, value.shape) for key, value in batch.items()} == {
            "image": ("float32", (8, 6, 5, 3)),
            "label": ("int32", (8,)),
            "index": ("int64", (8,)),
            "other_label": ("int32", (8,)),
            "mix": ("float32", (8,)),
        }

    def test_a_batch_may_be_larger_than_the_source(self, photos, defaults):
        [batch] = take(train_batches(photos, dataclasses.replace(defaults, batch_size=42), seed=0), 1)
        np.testing.assert_array_equal(np.bincount(batch["index"]), 2)


class TestSameStream:
    """An example is a function of (seed, position), whoever makes it."""

    @pytest.fixture
    def expected(self, photos, mixed):
        return stream(train_batches(photos, mixed, seed=5), 6)

    def test_again(self, photos, mixed, expected):
        assert_same(expected, stream(train_batches(photos, mixed, seed=5), 6))

    @pytest.mark.parametrize("batch_size", [1, 6, 48])
    def test_any_batch_size(self, photos, mixed, expected, batch_size):
        data = dataclasses.replace(mixed, batch_size=batch_size)
        assert_same(expected, stream(train_batches(photos, data, seed=5), 48 // batch_size))

    @pytest.mark.parametrize("threads", [0, 4])
    def test_any_number_of_threads(self, photos, mixed, expected, threads, monkeypatch):
        monkeypatch.setattr(pipeline, "_READ", grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads))
        assert_same(expected, stream(train_batches(photos, mixed, seed=5), 6))

    @pytest.mark.parametrize("processes", [2, 4])
    def test_any_number_of_processes(self, photos, mixed, expected, processes):
        """Process k holds the k-th block of each global batch."""
        shares = [take(train_batches(photos, mixed, 5, k, processes), 6) for k in range(processes)]
        blocks = [share[step] for step in range(6) for share in shares]
        assert all(len(block["label"]) == 8 // processes for block in blocks)
        assert_same(expected, {key: np.concatenate([block[key] for block in blocks]) for key in expected})

    @pytest.mark.more
    def test_workers(self, photos, mixed, expected):
        """Workers leave the state as it is, too: one run may start with them and go on without."""
        batches = train_batches(photos, dataclasses.replace(mixed, workers=2), seed=5)
        first = [next(batches) for _ in range(3)]
        state = batches.get_state()
        batches.close()
        rest = train_batches(photos, mixed, seed=5)
        rest.set_state(state)
        joined = first + take(rest, 3)
        assert_same(expected, {key: np.concatenate([batch[key] for batch in joined]) for key in expected})


class TestAugmentation:
    def test_an_example_is_augmented_anew_every_epoch(self, photos, augmented):
        out = stream(train_batches(photos, augmented, seed=0), 21)
        images = out["image"][out["index"] == 7]
        assert len(images) == 8
        assert len({image.tobytes() for image in images}) > 4

    def test_one_example_is_augmented_as_the_chain_says(self, photos, augmented):
        """Against every outcome of the chain, computed one by one."""
        [batch] = take(train_batches(photos, augmented, seed=0), 1)
        normalise = transforms.parse("normalise(mean=0.5, std=0.25)")
        for index, image in zip(batch["index"], batch["image"], strict=True):
            padded = np.pad(photos[index]["image"], ((2, 2), (2, 2), (0, 0)))
            crops = [padded[top : top + 6, left : left + 5] for top in range(5) for left in range(5)]
            outcomes = [flipped for crop in crops for flipped in (crop, crop[:, ::-1])]
            matches = [np.array_equal(transforms.apply(normalise, outcome), image) for outcome in outcomes]
            assert sum(matches) == 1

    def test_mixing_changes_neither_order_nor_augmentation(self, photos, augmented):
        """With a tiny alpha many weights are exactly 1, where nothing is mixed in."""
        plain, mixed = (
            stream(train_batches(photos, dataclasses.replace(augmented, mixup=alpha), seed=5), 4)
            for alpha in (0.0, 0.01)
        )
        np.testing.assert_array_equal(plain["index"], mixed["index"])
        whole = mixed["mix"] == 1
        assert whole.sum() > 5
        np.testing.assert_array_equal(plain["image"][whole], mixed["image"][whole])


class TestMixup:
    def test_equation(self, photos, defaults):
        """Without augmentation both images are known, so mix · image + (1 - mix) · other is found by search."""
        out = stream(train_batches(photos, dataclasses.replace(defaults, mixup=1.0), seed=1), 4)
        for image, index, mix, other_label in zip(
            *(out[k] for k in ("image", "index", "mix", "other_label")), strict=True
        ):
            own = photos[index]["image"] / 255
            candidates = [mix * own + (1 - mix) * record["image"] / 255 for record in photos]
            distances = [np.abs(image - candidate).max() for candidate in candidates]
            assert min(distances) < 1e-6
            if mix < 0.99:
                assert photos[int(np.argmin(distances))]["label"] == other_label

    @pytest.mark.more
    def test_the_weight_is_beta_distributed(self, photos, mixed):
        mix = stream(train_batches(photos, dataclasses.replace(mixed, batch_size=100, mixup=0.4), seed=0), 10)["mix"]
        np.testing.assert_allclose(mix.mean(), 0.5, atol=0.03)
        np.testing.assert_allclose(mix.var(), 1 / (4 * (2 * 0.4 + 1)), atol=0.015)

    def test_partners_are_a_shuffle_of_their_own(self, photos, mixed):
        out = stream(train_batches(photos, dataclasses.replace(mixed, batch_size=21), seed=0), 4)
        others, labels = out["other_label"].reshape(4, 21), out["label"].reshape(4, 21)
        for epoch in others:
            np.testing.assert_array_equal(np.bincount(epoch), 7)
        assert not np.array_equal(others, labels)
        assert len({tuple(epoch) for epoch in others}) == 4


class TestResume:
    RESUME = """
import dataclasses, hashlib, itertools, json, sys
from train.data.images.section import ImageData
options, state, count = json.loads(sys.argv[1])
data = ImageData(**options)
batches = data.load()["train"].train_batches(seed=7)
batches.set_state(state)
digest = hashlib.sha256()
for batch in itertools.islice(batches, count):
    for key in sorted(batch):
        digest.update(batch[key].tobytes())
batches.close()
print(digest.hexdigest())
"""

    @pytest.mark.parametrize("taken", [0, 1, 5])
    def test_a_fresh_iterator_goes_on_where_the_state_was_taken(self, photos, mixed, taken):
        whole = take(train_batches(photos, mixed, seed=7), 9)
        stopped = train_batches(photos, mixed, seed=7)
        for _ in range(taken):
            next(stopped)
        state = json.loads(json.dumps(stopped.get_state()))
        stopped.close()
        fresh = train_batches(photos, mixed, seed=7)
        fresh.set_state(state)
        for expected, batch in zip(whole[taken:], take(fresh, 9 - taken), strict=True):
            assert_same(expected, batch)

    def test_an_iterator_in_use_can_be_set_back(self, photos, mixed):
        batches = train_batches(photos, mixed, seed=7)
        first = next(batches)
        state = batches.get_state()
        second = next(batches)
        next(batches)
        batches.set_state(state)
        assert_same(second, next(batches))
        batches.set_state({"taken": 0})
        assert_same(first, next(batches))
        batches.close()

    def test_a_fresh_process_goes_on_bit_by_bit(self, mixed, run_python):
        batches = mixed.load()["train"].train_batches(seed=7)
        next(batches)
        next(batches)
        state = batches.get_state()
        expected = hashlib.sha256()
        for batch in take(batches, 3):
            for key in sorted(batch):
                expected.update(batch[key].tobytes())
        arguments = json.dumps([dataclasses.asdict(mixed), state, 3])
        assert run_python("-c", self.RESUME, arguments).stdout.strip() == expected.hexdigest()

    def test_orbax_saves_and_restores_it(self, photos, mixed, tmp_path):
        batches = train_batches(photos, mixed, seed=7)
        for _ in range(3):
            next(batches)
        with ocp.training.Checkpointer(tmp_path) as checkpointer:
            checkpointer.save_checkpointables(3, {"data": batches})
            expected = next(batches)
            fresh = train_batches(photos, mixed, seed=7)
            checkpointer.load_checkpointables(3, {"data": fresh})
            assert_same(expected, next(fresh))
        fresh.close()
        batches.close()

    def test_closed_is_closed(self, photos, defaults):
        batches = train_batches(photos, defaults, seed=0)
        next(batches)
        batches.close()
        with pytest.raises(ValueError, match="closed iterator"):
            next(batches)


class TestEvaluation:
    def test_every_example_once_in_order(self, photos, defaults):
        out = stream(eval_batches(photos, defaults), 10)
        np.testing.assert_array_equal(out["index"], [*range(21), -1, -1, -1])
        np.testing.assert_array_equal(out["weight"], [1] * 21 + [0] * 3)
        np.testing.assert_array_equal(out["label"][:21], np.arange(21) % 3)
        np.testing.assert_array_equal(out["image"][21:], 0)
        for index in range(21):
            np.testing.assert_allclose(out["image"][index], photos[index]["image"] / 255, atol=1e-7)

    def test_batches_are_equally_large(self, photos, defaults):
        batches = list(eval_batches(photos, defaults))
        assert [batch["image"].shape for batch in batches] == [(8, 6, 5, 3)] * 3
        assert {key: value.dtype.name for key, value in batches[-1].items()} == {
            "image": "float32",
            "label": "int32",
            "index": "int64",
            "weight": "float32",
        }

    def test_no_padding_where_the_batch_divides(self, photos, defaults):
        out = stream(eval_batches(photos, dataclasses.replace(defaults, eval_batch_size=7)), 10)
        np.testing.assert_array_equal(out["weight"], np.ones(21))

    @pytest.mark.parametrize("processes", [2, 8])
    def test_processes_share_evenly(self, photos, defaults, processes):
        """With 8 processes some get nothing but padding in the last batch, and still take part in it."""
        shares = [list(eval_batches(photos, defaults, k, processes)) for k in range(processes)]
        assert {len(share) for share in shares} == {3}
        joined = [np.concatenate([share[step]["index"] for share in shares]) for step in range(3)]
        np.testing.assert_array_equal(np.concatenate(joined), [*range(21), -1, -1, -1])

    def test_transforms(self, photos, defaults):
        data = dataclasses.replace(defaults, train_transforms="resize(size=9)", eval_transforms="center_crop(size=4)")
        out = stream(eval_batches(photos, data), 3)
        np.testing.assert_allclose(out["image"][0], photos[0]["image"][1:5, 0:4] / 255, atol=1e-7)
        assert out["image"].shape == (24, 4, 4, 3)


@pytest.mark.parametrize("make", [lambda s, d: train_batches(s, d, 0, 0, 3), lambda s, d: eval_batches(s, d, 0, 3)])
def test_the_batch_must_divide_among_processes(photos, defaults, make):
    with pytest.raises(UsageError, match=r"batch_size = 8 does not divide among 3 processes; use a multiple"):
        make(photos, defaults)


def test_real_images(tfds_folder, augmented):
    data = dataclasses.replace(
        augmented, source="tfds:cifar100", data_dir=tfds_folder, batch_size=32, eval_batch_size=500
    )
    out = stream(data.load()["train"].train_batches(seed=0), 4)
    assert out["image"].shape == (128, 32, 32, 3)
    assert len(set(out["index"])) == 128
    assert sum(batch["weight"].sum() for batch in data.load()["test"].eval_batches()) == 10_000


class TestWorkersThatEnd:
    """What the operating system does to workers is one sentence, which the loop can save and stop on."""

    @pytest.fixture
    def batches(self, photos, defaults):
        batches = train_batches(photos, dataclasses.replace(defaults, workers=2), seed=5)
        yield batches
        batches.close()

    def test_a_killed_worker(self, photos, defaults, batches):
        next(batches)
        for worker in multiprocessing.active_children():
            worker.kill()
        with pytest.raises(UsageError, match=r"^A process that prepares data was ended from outside.* data.workers"):
            list(itertools.islice(batches, 100))
        state = batches.get_state()
        rest = train_batches(photos, defaults, seed=5)
        rest.set_state(state)
        batches.set_state(state)
        assert_same(next(rest), next(batches))
        rest.close()

    @pytest.mark.parametrize("limit", [12, 24])
    def test_too_few_files(self, batches, limit, monkeypatch):
        limits = {resource.RLIMIT_NOFILE: (limit, limit)}
        monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
        message = r"^data.workers=2 needs 60 more open files, but the limit of .* raise it \(ulimit -n .* fewer data"
        with pytest.raises(UsageError, match=message):
            next(batches)

    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), r"\(Too many open files\); raise that limit, or contin"),
            (OSError("[Errno 24] Too many open files"), r"\(Too many open files\)"),
            (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), r"\(Resource temporarily unavailable\)"),
        ],
    )
    def test_what_is_short(self, photos, defaults, monkeypatch, error, message):
        batches = train_batches(photos, defaults, seed=0)
        monkeypatch.setattr(batches, "_prefetching", lambda: _failing(error))
        with pytest.raises(UsageError, match=message):
            next(batches)

    def test_other_errors_stay(self, photos, defaults, monkeypatch):
        batches = train_batches(photos, defaults, seed=0)
        monkeypatch.setattr(batches, "_prefetching", lambda: _failing(OSError("a broken file")))
        with pytest.raises(OSError, match="a broken file"):
            next(batches)


def _failing(error):
    """Yields nothing; a generator can be closed, as Grain's iterators can."""
    raise error
    yield
