"""Masked tokens: losses, the fixed masks of evaluation, and baselines at the same positions."""

import json
import math

import jax
import numpy as np
import pytest

from attention import UsageError
from models.published import pretrained
from tests.train.tasks.test_language_modelling import TINY, first, forward, loss_of, measured, noisy, zero
from tests.train.tasks.test_language_modelling import task_of as _task_of
from train import loading, loop
from train.decode import export, trained

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


def test_a_uniform_models_perplexity_is_the_number_of_tokens(folder):
    task = task_of(folder)
    metrics = measured(task, zero(task))
    assert metrics["perplexity"] == pytest.approx(task.corpus.tokeniser.size, rel=1e-5)


@pytest.mark.more
def test_only_chosen_tokens_count_and_padding_is_not_attended_to(folder):
    task = task_of(folder)
    params = noisy(task)
    batch = first(task.eval_batches("test", 0, 1))
    sums, model = loss_of(task, params, batch), forward(task, params)
    total, right = 0.0, 0
    for row, length in enumerate(batch["length"]):
        if not length:
            continue
        logits = model(batch["tokens"][row : row + 1, :length])[0]
        chosen = np.flatnonzero(batch["weight"][row])
        targets = batch["targets"][row, chosen]
        total -= float(jax.nn.log_softmax(logits)[chosen, targets].sum())
        right += int((np.asarray(logits).argmax(-1)[chosen] == targets).sum())
    assert sums["weight"] == batch["weight"].sum()
    assert float(sums["loss"]) == pytest.approx(total, rel=1e-4)
    assert sums["accuracy"] == right


def test_masks_of_evaluation_are_the_same_for_every_seed(folder):
    one, two = (list(task_of(folder, seed=seed).eval_batches("test", 0, 1)) for seed in (0, 1))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a["tokens"], b["tokens"])


def test_baselines_are_on_the_same_positions(folder):
    task = task_of(folder)
    found, train = task.baselines(), task.corpus.splits["train"].ids[:]
    counts = np.bincount(train, minlength=task.corpus.tokeniser.size)
    batches = list(task.eval_batches("test", 0, 1))
    targets = np.concatenate([batch["targets"][batch["weight"] > 0] for batch in batches])
    assert len(targets) == sum(batch["weight"].sum() for batch in batches)
    assert found["most_frequent_accuracy"] == np.mean(targets == counts.argmax())
    rough = math.exp(-np.mean(np.log((counts[targets] + 0.5) / (counts + 0.5).sum())))
    assert found["unigram_perplexity"] == pytest.approx(rough, rel=0.05)


def test_another_padding_than_the_tokenisers_is_refused(folder):
    with pytest.raises(UsageError, match=r"model.padding_token is 1, but .* pads with 0; set --config.model.padding"):
        task_of(folder, model__padding_token=1)


def test_a_tokeniser_without_a_mask_is_refused(folder):
    with pytest.raises(UsageError, match="needs a tokeniser with a mask token"):
        task_of(folder, data__tokeniser="words(size=9)")


@pytest.mark.more
def test_training_starts_from_published_weights_and_says_what_was_loaded(folder, tmp_path, capsys):
    task = task_of(folder)
    params = noisy(task)
    pretrained.export(str(tmp_path / "published"), task.model.config, params)
    assert task.pretrained(params) == (params, "")
    start = {"model.pretrained": str(tmp_path / "published"), "train.length": "1 step", "optimizer.learning_rate": "0"}
    data = {"data.source": f"file:{folder}", "data.tokeniser": "words(marks=True)", "model.padding_token": "0"}
    config, plain = loading.resolve("configs/mlm_pydoc.py", TINY | data | start)
    result = loop.train_and_evaluate(config, plain, tmp_path / "run")
    said = " ".join(capsys.readouterr().out.split())  # a long line is folded
    assert f"From {tmp_path / 'published'}: {len(jax.tree.leaves(params))} arrays loaded." in said
    assert result["final"]["test"] == pytest.approx(measured(task, params), rel=1e-5)


def test_published_weights_that_do_not_fit_are_refused_before_anything_is_written(folder, tmp_path):
    task = task_of(folder)
    pretrained.export(str(tmp_path / "published"), task.model.config, noisy(task))
    with pytest.raises(UsageError, match=r"The model does not fit .*: model.mlp is 24 but there \d+\."):
        task_of(folder, model__pretrained=tmp_path / "published", model__mlp=24)
    with pytest.raises(UsageError, match=r"The model does not fit .*: the vocabulary is \d+ but there \d+\."):
        task_of(folder, model__pretrained=tmp_path / "published", data__tokeniser="words(size=8, marks=True)")


@pytest.mark.more
def test_a_run_is_exported_with_its_tokeniser_and_a_card_that_tells_of_it(folder, tmp_path, capsys):
    data = {"data.source": f"file:{folder}", "data.tokeniser": "words(marks=True)", "model.padding_token": "0"}
    changes = TINY | data | {"train.length": "1 step", "train.ema": "0.5"}
    config, plain = loading.resolve("configs/mlm_pydoc.py", changes)
    result = loop.train_and_evaluate(config, plain, tmp_path / "run")
    export.export(tmp_path / "run", str(tmp_path / "out"))
    _, trained_params = trained.load(tmp_path / "run", "best")
    task = task_of(folder)
    loaded, _ = pretrained.load(str(tmp_path / "out"), task.model.config, zero(task))
    jax.tree.map(np.testing.assert_array_equal, loaded, trained_params)
    for name in ("tokeniser.json", "config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).is_file()
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{result['parameters']:,} parameters, after step 1" in card
    assert result["git"] in card
    assert f"perplexity {result['best']['test']['perplexity']:.4g}" in card
    assert json.loads(card.partition("```json")[2].partition("```")[0])["data"]["source"] == f"file:{folder}"
    name = card.partition("from transformers import ")[2].split()[0]
    assert name == "RobertaForMaskedLM"
    with pytest.raises(UsageError, match=r"README\.md already|config\.json already"):
        export.export(tmp_path / "run", str(tmp_path / "out"))


def test_a_run_that_transformers_has_not_is_not_exported(tmp_path):
    plain = loading.load("configs/cnn_digits.py").to_dict()
    (tmp_path / "config.json").write_text(json.dumps(plain))
    with pytest.raises(UsageError, match=r"Published weights are those of RoBERTa, .* but model.name is 'cnn'"):
        export.export(tmp_path, str(tmp_path / "out"))
