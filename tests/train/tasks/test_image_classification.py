"""The loss and the metrics against formulas in NumPy, and what images must be."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from tests.train.data.streams import labelled
from tests.train.tasks.test_language_modelling import forward, loss_of
from train import loading, tasks
from train.data.images.section import ImageData, ImageExamples
from train.data.splits import PARTS
from train.losses import cross_entropy, in_top

LOGITS = jax.random.normal(jax.random.key(0), (6, 10)) * 3
LABELS = jnp.array([0, 3, 9, 2, 2, 7])


def log_softmax(x):
    x = np.asarray(x, np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_minus_the_sum_of_target_times_log_probability(smoothing):
    target = (1 - smoothing) * np.eye(10)[np.asarray(LABELS)] + smoothing / 10
    expected = -(target * log_softmax(LOGITS)).sum(-1)
    chex.assert_trees_all_close(cross_entropy(LOGITS, LABELS, smoothing), expected.astype(np.float32), atol=1e-5)


def test_in_top_is_membership_in_the_sorted_list():
    best = np.argsort(-np.asarray(LOGITS), axis=-1)[:, :5]
    expected = [float(label in row) for label, row in zip(np.asarray(LABELS), best, strict=True)]
    assert in_top(LOGITS, LABELS, 5).tolist() == expected


@pytest.mark.parametrize("logits", [jnp.zeros((10, 10)), jnp.full((10, 10), jnp.nan)])
def test_logits_that_say_nothing_are_right_by_chance_alone(logits):
    assert in_top(logits, jnp.arange(10), 1).sum() <= 1


def task_of(**changes):
    overrides = {field.replace("__", "."): text for field, text in changes.items()}
    config, _ = loading.resolve("configs/vit_digits.py", overrides)
    return tasks.find(config.task)(config)


@pytest.fixture(scope="module")
def task_and_params():
    task = task_of(model__depth="1", train__label_smoothing="0.1", model__dropout="0.0", model__attention_dropout="0.0")
    return task, jax.jit(task.init)(jax.random.key(0))


def test_sums_leave_padding_out_and_evaluation_smooths_no_labels(task_and_params):
    task, params = task_and_params
    images = jax.random.uniform(jax.random.key(1), (6, 8, 8, 1))
    batch = {"image": images, "label": LABELS, "weight": jnp.array([1.0, 1, 1, 0, 1, 0])}
    sums = loss_of(task, params, batch)
    real = np.array([0, 1, 2, 4])
    losses = -log_softmax(forward(task, params)(images))[np.arange(6), np.asarray(LABELS)]
    assert sums["weight"] == 4
    np.testing.assert_allclose(sums["loss"], losses[real].sum(), rtol=1e-5)
    trained = loss_of(task, params, batch, jax.random.key(2))
    assert abs(trained["loss"] - sums["loss"]) > 1e-3


def test_mixed_images_are_charged_for_both_labels(task_and_params):
    task, params = task_and_params
    images, mix, other = jax.random.uniform(jax.random.key(1), (6, 8, 8, 1)), jnp.linspace(0, 1, 6), LABELS[::-1]
    key = jax.random.key(2)

    def loss_with(labels, weight):
        return loss_of(task, params, {"image": images, "label": labels, "weight": weight}, key)["loss"]

    mixed = loss_of(task, params, {"image": images, "label": LABELS, "other_label": other, "mix": mix}, key)["loss"]
    np.testing.assert_allclose(mixed, loss_with(LABELS, mix) + loss_with(other, 1 - mix), rtol=1e-5)


def with_images(monkeypatch, **parts):
    """A small task on labelled images of its own, from pixels and labels by part."""
    images = {part: labelled(*given) for part, given in parts.items()}
    monkeypatch.setattr(ImageData, "load", lambda data: {part: ImageExamples(data, images[part]) for part in images})
    classes = len(set(parts["train"][1]))
    return task_of(data__classes=str(classes), model__depth="1")


def blank(labels, channels=1):
    return np.zeros((len(labels), 8, 8, channels), np.uint8), labels


def test_evaluation_images_of_another_kind_are_refused(monkeypatch):
    with pytest.raises(UsageError, match=r"Images for validation are 4x4 pixels and those for training 8x8"):
        task_of(data__eval_transforms="center_crop(size=4)")
    grey, coloured = (blank([0, 1, 2], channels) for channels in (1, 3))
    with pytest.raises(UsageError, match=r"Images for validation have 3 channels and those for training 1"):
        with_images(monkeypatch, train=grey, validation=coloured, test=coloured)


@pytest.mark.parametrize(("classes", "has"), [(5, False), (6, True)])
def test_the_first_five_count_only_where_there_are_more_classes(classes, has, monkeypatch):
    task = with_images(monkeypatch, **dict.fromkeys(PARTS, blank([*range(classes)])))
    params = jax.eval_shape(task.init, jax.random.key(0))
    batch = {"image": jnp.zeros((2, 8, 8, 1)), "label": jnp.zeros(2, int)}
    assert ("top5" in jax.eval_shape(lambda p: task.loss(p, batch, None), params)) == has


def test_the_baseline_is_the_trainings_most_frequent_class(monkeypatch):
    labels = {"train": [0, 1, 2, 2], "validation": [0, 1, 2], "test": [0, 0, 0, 1, 2, 2]}
    task = with_images(monkeypatch, **{part: blank(given) for part, given in labels.items()})
    assert task.baselines() == {"most_frequent_accuracy": 1 / 3}


def test_one_class_is_refused(monkeypatch):
    with pytest.raises(UsageError, match="All images have one class; give data with at least two classes"):
        with_images(monkeypatch, **dict.fromkeys(PARTS, blank([0, 0])))
