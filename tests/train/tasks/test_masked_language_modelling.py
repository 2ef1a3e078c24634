"""Masked tokens: losses, baselines, and published weights in and out."""

import json
import math

import jax
import numpy as np
import pytest

from attention import UsageError
from models.published import pretrained
from tests.train.tasks.test_language_modelling import TINY, first, loss_of, measured, noisy, sums_one_by_one, zero
from tests.train.tasks.test_language_modelling import task_of as _task_of
from train import loading, loop
from train.decode import export

WORDS = ("the", "cat", "sat", "on", "mat", "and", "dog", "slept", "near", "a", "the", "the")


@pytest.fixture
def folder(tmp_path):
    for seed, split in enumerate(("train", "validation", "test")):
        drawn = np.random.default_rng(seed).choice(WORDS, 150)
        (tmp_path / f"{split}.txt").write_text(" ".join(drawn), encoding="utf-8")
    return tmp_path


def task_of(folder, **changes):
    fixed = {"data__tokeniser": "words(marks=True)", "model__padding_token": 0}
    return _task_of(folder, config="configs/mlm_pydoc.py", **fixed | changes)


def test_only_chosen_tokens_count_and_padding_is_not_attended_to(folder):
    task = task_of(folder)
    params, batch = noisy(task), first(task.eval_batches("test", 0, 1))
    lengths = dict.fromkeys(("tokens", "targets", "weight"), batch["length"])
    assert loss_of(task, params, batch) == sums_one_by_one(task, params, batch, lengths)
    assert task.metrics("test", {"loss": 2.0})["perplexity"] == pytest.approx(math.exp(2))


def test_baselines_are_on_the_same_positions(folder):
    task = task_of(folder)
    found, train = task.baselines(), task.corpus.splits["train"].ids[:]
    counts = np.bincount(train, minlength=task.corpus.tokeniser.size)
    batches = list(task.eval_batches("test", 0, 1))
    targets = np.concatenate([batch["targets"][batch["weight"] > 0] for batch in batches])
    assert found["most_frequent_accuracy"] == np.mean(targets == counts.argmax())
    rough = math.exp(-np.mean(np.log((counts[targets] + 0.5) / (counts + 0.5).sum())))
    assert found["unigram_perplexity"] == pytest.approx(rough, rel=0.05)


def test_tokens_and_published_weights_that_do_not_fit_are_refused(folder, tmp_path):
    with pytest.raises(UsageError, match=r"model.padding_token is 1, but .* pads with 0; set --config.model.padding"):
        task_of(folder, model__padding_token=1)
    task = task_of(folder)
    pretrained.export(str(tmp_path / "published"), task.model.config, noisy(task))
    with pytest.raises(UsageError, match=r"The model does not fit .*: the vocabulary is \d+ but there \d+\."):
        task_of(folder, model__pretrained=tmp_path / "published", data__tokeniser="words(size=8, marks=True)")


@pytest.mark.more
def test_training_starts_from_published_weights_and_publishes_its_own(folder, tmp_path, capsys):
    """A step at a rate of 0 changes nothing, so what comes out is what went in."""
    task = task_of(folder)
    params = noisy(task)
    pretrained.export(str(tmp_path / "published"), task.model.config, params)
    start = {"model.pretrained": str(tmp_path / "published"), "train.length": "1 step", "optimizer.learning_rate": "0"}
    data = {"data.source": f"file:{folder}", "data.tokeniser": "words(marks=True)", "model.padding_token": "0"}
    config, plain = loading.resolve("configs/mlm_pydoc.py", TINY | data | start)
    result = loop.train_and_evaluate(config, plain, tmp_path / "run")
    said = " ".join(capsys.readouterr().out.split())  # a long line is folded
    assert f"From {tmp_path / 'published'}: {len(jax.tree.leaves(params))} arrays loaded." in said
    assert result["final"]["test"] == pytest.approx(measured(task, params), rel=1e-5)

    export.export(tmp_path / "run", str(tmp_path / "out"))
    loaded, _ = pretrained.load(str(tmp_path / "out"), task.model.config, zero(task))
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    for name in ("tokeniser.json", "config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{result['parameters']:,} parameters, after step 1" in card
    assert f"perplexity {result['best']['test']['perplexity']:.4g}" in card
    assert json.loads(card.partition("```json")[2].partition("```")[0])["data"]["source"] == f"file:{folder}"
    with pytest.raises(UsageError, match=r"README\.md already|config\.json already"):
        export.export(tmp_path / "run", str(tmp_path / "out"))


def test_a_run_that_transformers_has_not_is_not_exported(tmp_path):
    plain = loading.load("configs/cnn_digits.py").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match=r"Published weights are those of RoBERTa, .* but model.name is 'cnn'"):
        export.export(tmp_path, str(tmp_path / "out"))
