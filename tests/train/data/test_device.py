"""Batches gathered on a device equal those of the host's pipeline bit for bit."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.train.data.conftest import IMAGES, SECTIONS
from tests.train.data.streams import labelled, take
from train.data.device import Resident, why_host
from train.data.encodings.images import LabelledImages
from train.data.images.section import ImageData, ImageExamples

LIMIT = 2**30
SEEDS = (0, 2**32 - 7)
KINDS = [kind for kind in (*IMAGES, *SECTIONS) if kind not in ("mixed images", "pairs in buckets")]


def assert_bits(host, device):
    """Compares all arrays bit by bit; an index has 32 bits on a device."""
    assert host.keys() == device.keys()
    for name, value in host.items():
        found = np.asarray(device[name])
        kind = np.int32 if name == "index" else value.dtype
        assert (found.dtype, found.shape) == (kind, value.shape), name
        assert found.tobytes() == value.astype(kind).tobytes(), name


def batches_of(examples, first, count, *share):
    """Makes some training batches on the host."""
    batches = examples.train_batches(*share)
    batches.set_state({"taken": first})
    return take(batches, count)


def at(rows, step):
    return {name: of[step] for name, of in rows.items()}


@pytest.mark.parametrize("kind", KINDS)
class TestBatches:
    def test_training_over_epochs_for_all_seeds_in_one_program(self, make_examples, kind):
        examples = make_examples(kind)["train"]
        resident = Resident(examples)
        assert why_host(examples, LIMIT) == ""
        first, steps = max(0, examples.epoch_length // examples.data.batch_size - 4), 12
        arrays, batch = jax.device_put(resident.arrays), jax.jit(jax.vmap(resident.batch, (None, 0, 0)))
        for process, processes in ((0, 1), (1, 2)):
            feeds = [resident.feed(seed, first, steps, process, processes) for seed in SEEDS]
            hosts = [batches_of(examples, first, steps, seed, process, processes) for seed in SEEDS]
            for step in range(steps):
                rows = {name: np.stack([feed[name][step] for feed in feeds]) for name in feeds[0]}
                found = batch(arrays, rows, np.array(SEEDS, np.uint32))
                for replica, host in enumerate(hosts):
                    assert_bits(host[step], at(found, replica))

    def test_evaluation(self, make_examples, kind):
        examples = make_examples(kind)["validation"]
        resident = Resident(examples, training=False)
        arrays, batch = jax.device_put(resident.arrays), jax.jit(resident.batch)
        for process, processes in ((0, 1), (1, 2)):
            feed = resident.feed(process, processes)
            hosts = list(examples.eval_batches(process, processes))
            assert len(feed["index"]) == len(hosts)
            for step, host in enumerate(hosts):
                assert_bits(host, batch(arrays, at(feed, step)))

    @pytest.mark.parametrize("training", [True, False])
    def test_sizes_are_known_before_anything_is_read(self, make_examples, kind, training):
        resident = Resident(make_examples(kind)["train"], training)
        arrays = resident.arrays
        assert {name: (of.shape, of.dtype) for name, of in arrays.items()} == {
            name: (of.shape, of.dtype) for name, of in resident.shapes.items()
        }
        assert resident.nbytes == sum(of.nbytes for of in arrays.values())


def test_one_program_makes_the_batches_of_many_steps(make_examples):
    """It scans over the rows, as the loop does, from a position beyond 2**32."""
    examples = make_examples("augmented images")["train"]
    resident = Resident(examples)
    first = 2**33 // examples.data.batch_size - 2
    feed = resident.feed(5, first, 6)

    @jax.jit
    def run(arrays, feed, seed):
        return jax.lax.scan(lambda _, rows: (None, resident.batch(arrays, rows, seed)), None, feed)[1]

    found = run(resident.arrays, feed, np.uint32(5))
    for step, host in enumerate(batches_of(examples, first, 6, 5)):
        assert_bits(host, at(found, step))


def test_a_feed_is_cheap(make_examples):
    """It reads nothing: rows come from the epoch, which is ordered once."""
    examples = make_examples("augmented images")["train"]
    resident, ordered = Resident(examples), []
    resident.feed(0, 0, 2)
    object.__setattr__(examples, "epoch", lambda *of: ordered.append(of))
    resident.feed(0, 1, 1)
    assert not ordered


class TestWhyHost:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"train_transforms": "flip|resize(size=4)"}, "resize in data.train_transforms runs on the host"),
            ({"train_transforms": "resize(size=4)|colour_jitter|flip"}, "colour_jitter in data.train_transforms runs"),
            ({"mixup": 0.2}, "data.mixup runs on the host"),
        ],
    )
    def test_images(self, photos, defaults, changes, reason):
        examples = ImageExamples(dataclasses.replace(defaults, **changes), photos)
        assert why_host(examples, LIMIT).startswith(reason)
        assert why_host(examples, LIMIT, training=False) == ""

    def test_images_of_several_sizes(self, defaults):
        records = [{"image": np.zeros((side, 9, 3), np.uint8), "label": 0} for side in (8, 10)]
        images = LabelledImages(records, 1, (0, 9, 3), range(2))
        assert why_host(ImageExamples(defaults, images), LIMIT) == "the images differ in size"
        resized = dataclasses.replace(defaults, train_transforms="resize(size=8)|flip")
        assert why_host(ImageExamples(resized, images), LIMIT) == ""

    def test_more_than_may_be_held(self, photos, defaults):
        examples = ImageExamples(defaults, photos)
        assert why_host(examples, 21 * (90 + 4)) == ""
        assert why_host(examples, 21 * (90 + 4) - 1) == "they take 1,974 bytes, more than the 1,973 that may be held"

    def test_buckets(self, make_examples):
        assert why_host(make_examples("pairs in buckets")["train"], LIMIT) == "batches of data.buckets differ in length"


def test_a_device_holds_what_a_dry_run_stands_for():
    blank = ImageData(image_shape="8x8x1").blank()
    assert Resident(blank).shapes["image"].shape == (1, 8, 8, 1)
    assert why_host(blank, LIMIT) == ""


def test_large_labels_are_held_as_they_are(defaults):
    images = labelled(np.zeros((3, 2, 2), np.uint8), np.array([0, 2**23, 1]))
    assert Resident(ImageExamples(defaults, images)).arrays["label"].tolist() == [0, 2**23, 1]
