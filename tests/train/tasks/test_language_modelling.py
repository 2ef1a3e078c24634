"""Perplexities against known values, and against sums by hand."""

import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention import UsageError
from tests.models.small import random_like
from train import loading, tasks
from train.config.schema import MeshConfig
from train.data.tokenisers.base import ByteTokeniser
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.run import workdir
from train.run.evaluations import Evaluator
from train.tasks.ngrams import ngram_losses

TEXT = {
    "train": "the cat sat on the mat. " * 9,
    "validation": "a rat sat.",
    "test": "the rat ate a cat on my mat, é!",
}
TINY = {"model.depth": "1", "model.width": "8", "model.heads": "2", "model.mlp": "8", "data.context": "8"}


@pytest.fixture
def folder(tmp_path):
    for split, text in TEXT.items():
        (tmp_path / f"{split}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def task_of(folder, config="configs/gpt_pydoc.py", **changes):
    changes = {name.replace("__", "."): str(value) for name, value in changes.items()}
    config, _ = loading.resolve(config, TINY | {"data.source": f"file:{folder}"} | changes)
    return tasks.find(config.task)(config)


def noisy(task):
    """Parameters whose every array matters."""
    return random_like(jax.eval_shape(task.init, jax.random.key(0)))


def zero(task):
    return jax.tree.map(jnp.zeros_like, jax.eval_shape(task.init, jax.random.key(0)))


def loss_of(task, params, batch, key=None):
    """The task's sums, compiled as a whole."""
    return jax.jit(lambda params, batch: task.loss(params, batch, key))(params, batch)


def forward(task, params):
    """The model as a function of its inputs, compiled once for each shape."""
    return jax.jit(lambda *inputs: task.model.apply({"params": params}, *inputs))


def sums_one_by_one(task, params, batch, lengths):
    """Sums the losses and the right answers of examples that the model gets by themselves, without their padding.

    `lengths` says how long the arrays of each example are, by their names in the batch.
    """
    model = jax.jit(lambda own: task.model.apply({"params": params}, *task.inputs(own)))
    loss = right = count = 0.0
    for row in np.flatnonzero(batch["weight"].reshape(len(batch["weight"]), -1).any(1)):
        own = {name: x[row : row + 1] for name, x in batch.items()}
        own |= {name: own[name][:, : length[row]] for name, length in lengths.items()}
        logits = np.atleast_2d(model(own)[0])
        targets = np.ravel(own["targets" if "targets" in own else "label"])
        losses = -jax.nn.log_softmax(logits)[np.arange(len(targets)), targets]
        chosen = np.ravel(own["weight"]) > 0
        loss, right = loss + losses[chosen].sum(), right + (logits.argmax(-1) == targets)[chosen].sum()
        count += chosen.sum()
    return {"loss": pytest.approx(float(loss), rel=1e-4), "accuracy": right, "weight": count}


def first(batches):
    """The first batch, on the device."""
    return jax.tree.map(jnp.asarray, next(iter(batches)))


def measured(task, params, split="test"):
    mesh = sharding.make_mesh(MeshConfig(-1, 1, 1))
    (found,), _ = Evaluator(task, Replicas([0], mesh))(split, params)
    return found.metrics


def test_strided_perplexities_are_those_by_hand(folder):
    task = task_of(folder, data__eval_stride=3)
    params, ids = noisy(task), ByteTokeniser().encode(TEXT["test"])
    true, windows, seen, model = [], [], 0, forward(task, params)
    for start in range(0, len(ids), 3):
        tokens, targets = ids[start : start + 8], ids[start + 1 : start + 9]
        tokens = tokens[: len(targets)]
        logits = model(jnp.asarray(tokens)[None])[0]
        losses = -jax.nn.log_softmax(logits)[np.arange(len(targets)), targets]
        new = np.arange(start + 1, start + 1 + len(targets)) > seen
        true += losses[new].tolist()
        seen = max(seen, start + len(targets))
        windows += losses.tolist() if len(targets) == 8 else []
        if seen == len(ids) - 1:
            break
    assert len(true) == len(ids) - 1
    metrics = measured(task, params)
    assert metrics["loss"] == pytest.approx(np.mean(true), rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(np.mean(true)), rel=1e-5)
    assert metrics["window_perplexity"] == pytest.approx(np.exp(np.mean(windows)), rel=1e-5)
    assert abs(np.mean(true) - np.mean(windows)) > 1e-3


def test_bits_are_of_the_texts_bytes_whatever_a_token_is(folder):
    task = task_of(folder, data__tokeniser="words(size=9)")
    metrics = measured(task, noisy(task))
    words, size = len(TEXT["test"].split()), len(TEXT["test"].encode())
    assert metrics["bits_per_byte"] == pytest.approx(metrics["loss"] / math.log(2) * words / size)


def test_a_model_of_nothing_but_noise_has_a_perplexity_all_the_same(folder):
    assert task_of(folder).metrics("test", {"loss": 1e6})["perplexity"] == math.exp(700)
    assert math.isnan(task_of(folder).metrics("test", {"loss": math.nan})["perplexity"])


def test_a_run_is_not_continued_on_other_data(folder, tmp_path):
    """One letter more or another letter in any split is other data; the same text in another place is not."""
    files = task_of(folder).files()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "data.json").write_text(files["data.json"])
    moved = shutil.copytree(folder, tmp_path / "moved", ignore=shutil.ignore_patterns("run"))
    workdir.check_files(task_of(moved, data__cache_dir=tmp_path / "elsewhere").files(), tmp_path / "run")
    for split, text in TEXT.items():
        for changed in (text + "!", "T" + text[1:]):
            (folder / f"{split}.txt").write_text(changed, encoding="utf-8")
            with pytest.raises(UsageError, match=r"data.json differs from what the data give now, .*: restore"):
                workdir.check_files(task_of(folder).files(), tmp_path / "run")
        (folder / f"{split}.txt").write_text(text, encoding="utf-8")
    workdir.check_files(task_of(folder).files(), tmp_path / "run")


def test_baselines_are_ngrams_of_bytes_and_the_unigram_of_words(folder):
    found = task_of(folder).baselines()
    assert set(found) == {f"context_{n}_{name}" for n in (2, 5) for name in ("perplexity", "bits_per_byte")}
    assert found["context_2_bits_per_byte"] == pytest.approx(math.log2(found["context_2_perplexity"]))
    task = task_of(folder, data__tokeniser="words(size=9)")
    words, train, test = task.baselines(), *(task.corpus.splits[split].ids[:] for split in ("train", "test"))
    assert set(words) == {"unigram_perplexity", "unigram_bits_per_byte"}
    losses = ngram_losses(train, test, 0, task.corpus.tokeniser.size)
    assert words["unigram_perplexity"] == pytest.approx(np.exp(losses.mean()))
