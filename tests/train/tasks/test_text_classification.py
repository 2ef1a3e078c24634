"""Classes of texts: sums, padding and baselines."""

import pytest

from tests.train.tasks.test_language_modelling import first, loss_of, noisy, sums_one_by_one
from tests.train.tasks.test_language_modelling import task_of as _task_of

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


def test_sums_are_those_of_each_text_alone(folder):
    task = task_of(folder)
    params, batch = noisy(task), first(task.eval_batches("test", 0, 1))
    expected = sums_one_by_one(task, params, batch, {"tokens": batch["length"]})
    assert loss_of(task, params, batch) == expected
    assert expected["weight"] == 20


def test_the_baseline_is_the_most_frequent_class_of_the_training_texts(folder):
    assert task_of(folder).baselines() == {"most_frequent_accuracy": 0.25}
