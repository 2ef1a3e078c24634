"""Batches gathered on a device equal those of the host's pipeline bit for bit."""

import dataclasses

import jax
import numpy as np
import pytest

from tests.train.data.conftest import DEFAULTS, IMAGES, SECTIONS
from tests.train.data.streams import take
from train.data.device import Resident, why_host
from train.data.encodings.images import LabelledImages
from train.data.images.section import ImageExamples

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


def assert_sizes_are_known(resident):
    shapes = {name: (of.shape, of.dtype) for name, of in resident.shapes.items()}
    assert shapes == {name: (of.shape, of.dtype) for name, of in resident.arrays.items()}
    assert resident.nbytes == sum(of.nbytes for of in resident.arrays.values())


def at(rows, step):
    return {name: of[step] for name, of in rows.items()}


@pytest.mark.parametrize("kind", KINDS)
class TestBatches:
    """The second of two processes has the second half of each batch."""

    def test_training_over_epochs_for_all_seeds_in_one_program(self, make_examples, kind):
        """The steps begin before the end of an epoch, at a position beyond 2**32."""
        examples, steps = make_examples(kind)["train"], 8
        resident = Resident(examples)
        assert why_host(examples, LIMIT) == ""
        assert_sizes_are_known(resident)
        epochs = 2**32 // examples.epoch_length + 2
        first = epochs * examples.epoch_length // examples.data.batch_size - 4
        feeds = [resident.feed(seed, first, steps, 1, 2) for seed in SEEDS]
        batch = jax.jit(jax.vmap(resident.batch, (None, 0, 0)))
        hosts = [examples.train_batches(seed, 1, 2) for seed in SEEDS]
        for host in hosts:
            host.set_state({"taken": first})
        hosts = [take(host, steps) for host in hosts]
        for step in range(steps):
            rows = {name: np.stack([feed[name][step] for feed in feeds]) for name in feeds[0]}
            found = batch(resident.arrays, rows, np.array(SEEDS, np.uint32))
            for replica, host in enumerate(hosts):
                assert_bits(host[step], at(found, replica))

    def test_evaluation(self, make_examples, kind):
        examples = make_examples(kind)["validation"]
        resident = Resident(examples, training=False)
        assert_sizes_are_known(resident)
        batch, feed = jax.jit(resident.batch), resident.feed(1, 2)
        hosts = list(examples.eval_batches(1, 2))
        assert len(feed["index"]) == len(hosts)
        for step, host in enumerate(hosts):
            assert_bits(host, batch(resident.arrays, at(feed, step)))


class TestWhyHost:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"train_transforms": "resize(size=4)|colour_jitter|flip"}, "colour_jitter in data.train_transforms runs"),
            ({"mixup": 0.2}, "data.mixup runs on the host"),
        ],
    )
    def test_what_only_the_host_does(self, photos, changes, reason):
        examples = ImageExamples(dataclasses.replace(DEFAULTS, **changes), photos)
        assert why_host(examples, LIMIT).startswith(reason)
        assert why_host(examples, LIMIT, training=False) == ""

    def test_images_of_several_sizes(self):
        records = [{"image": np.zeros((side, 9, 3), np.uint8), "label": 0} for side in (8, 10)]
        images = LabelledImages(records, 1, (0, 9, 3), range(2))
        assert why_host(ImageExamples(DEFAULTS, images), LIMIT) == "the images differ in size"
        resized = dataclasses.replace(DEFAULTS, train_transforms="resize(size=8)|flip")
        assert why_host(ImageExamples(resized, images), LIMIT) == ""

    def test_more_than_may_be_held(self, photos):
        examples = ImageExamples(DEFAULTS, photos)
        assert why_host(examples, 21 * (90 + 4)) == ""
        assert why_host(examples, 21 * (90 + 4) - 1) == "they take 1,974 bytes, more than the 1,973 that may be held"

    def test_buckets(self, make_examples):
        assert why_host(make_examples("pairs in buckets")["train"], LIMIT) == "batches of data.buckets differ in length"
