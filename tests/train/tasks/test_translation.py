"""Losses of pairs, padded or not, and the scores of the model's own translations."""

import chex
import jax
import pytest

from attention import UsageError
from models.published import pretrained
from tests.sizes import once
from tests.train.data.tokenisers import test_marian as published
from tests.train.tasks.test_language_modelling import first, loss_of, measured, noisy, sums_one_by_one, zero
from train import loading, tasks
from train.config.schema import MeshConfig
from train.generation import translation_scores
from train.mesh import sharding
from train.run.progress import averages

SMALL = {
    "encoder_decoder": {
        "config": "configs/translate_anki.py",
        "model__width": 16,
        "model__heads": 2,
        "model__mlp": 16,
        "model__decoder_depth": 2,
        "data__source_tokeniser": "bytes",
        "data__target_tokeniser": "words(marks=True)",
    },
    "seq2seq": {
        "config": "configs/seq2seq_dates.py",
        "model__embedding": 12,
        "model__hidden": 16,
        "data__source_tokeniser": "bytes",
    },
}
MESH = sharding.make_mesh(MeshConfig(-1, 1, 1))
PAIRS = [("ein Hund", "a dog"), ("eine Katze", "a cat"), ("zwei Hunde und eine Katze", "two dogs and a cat, Sir")]


def write_pairs(folder):
    for split, repeated in {"train": 3, "val": 2, "test": 1}.items():
        lines = [f"{source}\t{target}" for source, target in PAIRS] * repeated
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    write_pairs(tmp_path)
    return tmp_path


def task_of(folder, name, **changes):
    fixed = {"data__source": f"file:{folder}"} | {
        f"data__{part}_split": part for part in ("train", "validation", "test")
    }
    fixed |= {"data__source_column": 1, "data__target_column": 2, "data__source_length": 32, "data__target_length": 40}
    fixed |= {"data__buckets": "", "data__batch_size": 2, "data__eval_batch_size": 2, "data__translations": 0}
    changes = {key.replace("__", "."): str(value) for key, value in (fixed | SMALL[name] | changes).items()}
    config, _ = loading.resolve(changes.pop("config"), changes)
    return tasks.find(config.task)(config)


def test_sums_are_those_of_each_pair_alone(folder):
    task = task_of(folder, "encoder_decoder")
    params, batch = noisy(task), first(task.eval_batches("test", 0, 1))
    lengths = dict.fromkeys(("tokens", "targets", "weight"), batch["weight"].sum(1).astype(int))
    expected = sums_one_by_one(task, params, batch, lengths | {"source": batch["source_length"]})
    sums = loss_of(task, params, batch)
    padding = sums.pop("padding")
    assert sums == expected
    places = 40 * len(batch["weight"])
    padded = task.metrics("test", averages(sums | {"padding": padding}))["accuracy_with_padding"]
    assert padded == pytest.approx((sums["accuracy"] + places - sums["weight"]) / places, rel=1e-6)


@pytest.mark.parametrize("name", once(SMALL, ["seq2seq"]))
def test_scores_are_of_the_models_own_translations(folder, name):
    task = task_of(folder, name)
    params = noisy(task)
    with jax.set_mesh(MESH):
        found, wanted = task.translations("test", params, MESH)
    lowered = [target.lower().replace(",", "") if name == "encoder_decoder" else target for _, target in PAIRS]
    assert wanted == lowered
    metrics, expected = measured(task, params), translation_scores.scores(found, wanted)
    assert {key: metrics[key] for key in expected} == expected


def test_evaluations_translate_as_many_sentences_as_they_are_told(folder):
    task = task_of(folder, "seq2seq", data__translations=4)
    params = noisy(task)
    with jax.set_mesh(MESH):
        assert len(task.translations("validation", params, MESH, 4)[0]) == 4
        assert "bleu" in task.measured("validation", params, MESH)
        assert task.measured("train", params, MESH) == {}
        assert task_of(folder, "seq2seq").measured("validation", params, MESH) == {}


def test_groups_of_source_lengths_have_scores_of_their_own(folder):
    task = task_of(folder, "seq2seq", data__by_length="9,12")  # in bytes and an end token: 9, 11 and 26
    assert {key for key in measured(task, noisy(task)) if "_to_" in key} == {"bleu_to_9", "bleu_to_12", "bleu_to_32"}
    assert list(task.sources["test"].source_lengths) == [len(source) + 1 for source, _ in PAIRS]


def test_long_pairs_are_remarked_upon(folder):
    remarks = task_of(folder, "seq2seq", data__source_length=16).remarks()
    assert remarks == ["Left out, as longer than 16 and 40 tokens: 3 train, 2 validation, 1 test pairs"]


MARIAN = {
    "config": "configs/translate_iwslt.py",
    "data__source_tokeniser": "bytes",
    "data__target_tokeniser": "",
    "model__depth": 1,
    "model__decoder_depth": 1,
    "model__pretrained": "",
}


def test_published_weights_are_where_training_starts_unless_their_vocabulary_is_another(folder, tmp_path):
    before = task_of(folder, "encoder_decoder", **MARIAN)
    params, special = noisy(before), before.corpus.tokeniser.special
    assert before.pretrained(params) == (params, "")
    pretrained.export(str(tmp_path / "published"), before.model.config, params, special)
    start = MARIAN | {"model__pretrained": tmp_path / "published"}
    task = task_of(folder, "encoder_decoder", **start)
    loaded, report = task.pretrained(zero(task))
    chex.assert_trees_all_equal(loaded, params)
    assert "arrays loaded" in report
    with pytest.raises(UsageError, match=r"the vocabulary is .* but there 260"):
        task_of(folder, "encoder_decoder", **start | {"data__source_tokeniser": "words(marks=True)"})


def test_references_of_a_published_tokeniser_are_as_they_are_written(folder, tmp_path):
    (tmp_path / "marian").mkdir()
    published.write(tmp_path / "marian")
    sides = {f"data__{side}_tokeniser": f"marian:{tmp_path}/marian/{side}.spm" for side in ("source", "target")}
    task = task_of(folder, "encoder_decoder", **MARIAN | sides)
    with jax.set_mesh(MESH):
        found, wanted = task.translations("test", noisy(task), MESH)
    assert wanted == [target for _, target in PAIRS]
    assert len(found) == len(wanted)
