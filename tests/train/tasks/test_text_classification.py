"""Classes of texts: sums, padding, baselines, and the papers' layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.train.tasks.test_language_modelling import first, forward, loss_of, measured, noisy, zero
from tests.train.tasks.test_language_modelling import task_of as _task_of
from train import loading

LIKED, HATED = "a good film that I liked,pos", "not good at all and far too long for anybody to like,neg"


@pytest.fixture
def folder(tmp_path):
    rows = {"train": [LIKED, HATED, LIKED], "test": [LIKED, HATED, HATED, HATED]}
    for split, lines in rows.items():
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,label", *lines * 5]), encoding="utf-8")
    return tmp_path


def task_of(folder, **changes):
    splits = {"data__train_split": "train", "data__validation_split": "train"}
    return _task_of(folder, config="configs/classify_imdb.py", **splits | changes)


def test_an_indifferent_model_has_the_loss_of_a_coin(folder):
    task = task_of(folder)
    metrics = measured(task, zero(task))
    assert metrics["loss"] == pytest.approx(np.log(2), rel=1e-6)


@pytest.mark.more
def test_sums_are_those_of_each_text_alone(folder):
    task = task_of(folder)
    params, batch = noisy(task), first(task.eval_batches("test", 0, 1))
    sums, model = loss_of(task, params, batch), forward(task, params)
    real = batch["weight"] > 0
    logits = np.array(
        [
            model(tokens[None, :length], length[None])[0]
            for tokens, length in zip(batch["tokens"][real], batch["length"][real], strict=True)
        ]
    )
    labels = batch["label"][real]
    assert float(sums["weight"]) == 20
    assert float(sums["accuracy"]) == np.sum(logits.argmax(-1) == labels)
    losses = -jax.nn.log_softmax(logits)[np.arange(len(labels)), labels]
    assert float(sums["loss"]) == pytest.approx(float(losses.sum()), rel=1e-4)


def test_the_baseline_is_the_most_frequent_class_of_the_training_texts(folder):
    assert task_of(folder).baselines() == {"most_frequent_accuracy": 0.25}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("imdb", {"dot_product": 4_224, "optimised": 3_168, "efficient": 2_112, "super": 3_168}),
        ("amazon", {"dot_product": 16_640, "optimised": 12_480, "efficient": 8_320, "super": 12_480}),
    ],
)
def test_layers_have_the_papers_counts(name, counts):
    for attention, count in counts.items():
        config, _ = loading.resolve(f"configs/classify_{name}.py:{attention}", {})
        model = config.model.build(20_000, 2, config.data.context)
        tokens, lengths = jnp.zeros((1, config.data.context), jnp.int32), jnp.ones(1, jnp.int32)
        params = jax.eval_shape(model.init, jax.random.key(0), tokens, lengths)["params"]
        assert sum(leaf.size for leaf in jax.tree.leaves(params["block_0"]["attention"])) == count
