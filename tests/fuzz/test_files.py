"""Whatever a file holds is read, or told to be damaged in one short sentence."""

import base64
import dataclasses
import functools
import io
import json
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from analysis import compare, comparison, runs, trials
from analysis.pages import comparison as pages
from analysis.pages import trials as trial_page
from attention.errors import visible
from models.published import pretrained
from tests.analysis import tried
from tests.fuzz.harness import answers, damaged, fuzzed, texts_of
from tests.train.data.streams import load, read
from train import loading
from train.cli import files
from train.data import tokenisers
from train.grids import declaration, grid
from train.grids.trial_table import TrialTable
from train.run import workdir

RESULT = {
    "steps": 40,
    "best_step": 40,
    "seconds": 8.0,
    "parameters": 1000,
    "tokens": 16,
    "patch": 2,
    "train_examples": 10,
    "test_examples": 5,
    "baselines": {"most_frequent_accuracy": 0.1},
    "training_flops_per_example": 10,
    "best": {"validation": {"accuracy": 0.8, "loss": 0.2}, "test": {"accuracy": 0.9, "loss": 0.1}},
    "final": {"test": {"accuracy": 0.9, "loss": 0.1}},
}
REPLICAS = RESULT | {"mean": RESULT["best"], "replicas": [{"replica": 0, "seed": 0}, {"replica": 1, "seed": 1}]}
LINE = {"step": 40, "split": "validation", "accuracy": 0.8, "loss": 0.2, "seconds": 8.0}
SWEEP = {
    "config": "configs/vit_digits.py",
    "overrides": {},
    "over": {"model.attention": ["super", "dot_product"]},
    "seeds": [[0]],
    "equal": "",
    "cells": {
        "attention=super": {"chosen": {"optimizer.learning_rate": "0.01"}, "tried": {"0.01": [0.5], "0.1": [None]}}
    },
    "tune": {"field": "optimizer.learning_rate", "values": ["0.01", "0.1"], "length": "1/3", "seeds": 1}
    | {"metric": "accuracy", "highest": True, "rule": "The best."},
}
TRIED = dataclasses.asdict(tried.table())
DECLARED = {
    "question": "Which?",
    "metric": "accuracy",
    "margin": 0.01,
    "family": [{"name": "a", "settings": ["a=super"], "baselines": ["a=dot_product"], "claim": "better"}],
}


def described(architecture):
    """A `config.json` of a small published model."""
    names = {name: 8 for table in (architecture.fields, architecture.special) for name in table.values()}
    names |= dict.fromkeys(architecture.dropouts.values(), 0.1)
    names |= {
        architecture.fields.get("activation", "hidden_act"): "gelu",
        architecture.vocabulary: 11,
        architecture.length: 20,
    }
    if "norm_epsilon" in architecture.fields:
        names[architecture.fields["norm_epsilon"]] = 1e-5
    return names | architecture.standard | {"model_type": architecture.model_type}


@functools.cache
def config():
    return json.loads(json.dumps(loading.load("configs/vit_digits.py").to_dict()))


def write_run(folder, **contents):
    folder.mkdir(exist_ok=True)
    whole = {"config": config(), "result": RESULT}
    for name, value in whole.items():
        (folder / f"{name}.json").write_bytes(contents.get(name, json.dumps(value).encode()))
    (folder / "metrics.jsonl").write_bytes(contents.get("record", (json.dumps(LINE) + "\n").encode()))


def reported(places, at=""):
    """Makes a report with its files and its page, and checks that what they hold steers no terminal."""
    made = comparison.report(runs.find(places), "", [], at)
    with tempfile.TemporaryDirectory() as out:
        texts = [file.read_text() for file in made.write(Path(out))]
        texts += [pages.page(made, Path(out)), *made.verdict]
    assert texts == list(map(visible, texts))


@fuzzed(
    data=st.data(),
    name=st.sampled_from(["config", "result", "replicas", "record"]),
    beside=st.sampled_from(["nothing", "seed", "mechanism"]),
    at=st.sampled_from(["", *compare.BUDGETS]),
)
def test_work_directories(place, data, name, beside, at):
    whole = {"config": config(), "result": RESULT, "replicas": REPLICAS, "record": LINE}
    write_run(place / "a", **{name.replace("replicas", "result"): data.draw(texts_of(whole[name]))})
    if beside != "nothing":
        other = {"seed": {"seed": 7}, "mechanism": {"model": config()["model"] | {"attention": "dot_product"}}}[beside]
        write_run(place / "b", config=json.dumps(config() | other).encode())
    answers(workdir.read_config, place / "a")
    answers(workdir.read_results, place / "a")
    answers(files.read_record, place / "a")
    answers(reported, [place], at)


def shown(path):
    """Joins and shows a table of trials as it is."""
    table, remarks = trials.read([path, path])
    text = trial_page.page(table, ["delta"], remarks)
    assert text == visible(text)
    return TrialTable.merged([table, table]).text()


VOCABULARY = {"<pad>": 0, "<unk>": 1, "</s>": 2}
MARIAN_KIND = {"kind": "marian", "spm": base64.b64encode(b"\n\x03a").decode(), "vocabulary": VOCABULARY}


@functools.cache
def subwords(spec="wordpiece(size=20)"):
    return json.loads(tokenisers.make(spec, ["a b ab"]).dumps())


def used(path):
    tokeniser = tokenisers.make(f"file:{path}")
    return tokeniser.decode(tokeniser.encode_batch(["a b"])[0]), tokeniser.dumps(), tokeniser.size, tokeniser.special


DOCUMENTS = {
    "sweep": (SWEEP, lambda path: grid.read(path.parent)),
    "trials": (TRIED, shown),
    "declared": (DECLARED, declaration.read),
    "marian": (MARIAN_KIND, used),
    "words": (subwords("words"), used),
    "wordpiece": (subwords(), used),
}


@fuzzed(data=st.data(), name=st.sampled_from(sorted(DOCUMENTS)))
def test_documents(place, data, name):
    whole, reader = DOCUMENTS[name]
    (place / f"{name}.json").write_bytes(data.draw(texts_of(whole)))
    answers(reader, place / f"{name}.json")


@fuzzed(data=st.data(), architecture=st.sampled_from(pretrained.ARCHITECTURES))
def test_published_configs(place, data, architecture):
    (place / "config.json").write_bytes(data.draw(texts_of(described(architecture))))
    made = answers(pretrained.describe, str(place))
    if made:
        answers(lambda: architecture.config(**made.fields))


def archive(arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ARRAYS = {
    f"{split}_{kind}": array
    for split in ("train", "test")
    for kind, array in {"image": np.zeros((4, 2, 2), np.uint8), "label": np.arange(4)}.items()
}
ODD = st.sampled_from(
    [
        np.array(["a", "b", "c", "d"]),
        np.array([1, None, "x", []], object),
        np.array([0, 1, 2, 2**40]),
        np.array([0, 1, 2, -1]),
        np.array([0.5, 1, 2, np.nan]),
        np.array([b"", b"x", b"y", b"z"]),
        np.array(["2020-01-01"] * 4, "M8[D]"),
        np.array([1, 2, 3, 4], "c16"),
        np.zeros((4, 0, 0), np.uint8),
        np.zeros((0,), np.int64),
        np.zeros((), np.int64),
        np.zeros(4, [("a", "i4"), ("b", "f4")]),
        np.array([2**64 - 1] * 4, np.uint64),
        np.zeros(4, bool),
    ]
)


@fuzzed(
    content=damaged(archive(ARRAYS))
    | st.builds(lambda name, odd: archive(ARRAYS | {name: odd}), st.sampled_from(sorted(ARRAYS)), ODD)
)
def test_archives_of_images(place, content):
    (place / "a.npz").write_bytes(content)
    opened = answers(load, f"numpy:{place}/a.npz", "train")
    if opened:
        answers(opened.__getitem__, 0)


TABLES = {
    ".csv": b'text,class\n"one, two",a\nthree,b\n',
    ".tsv": b"text\tclass\none\ta\nthree\tb\n",
    ".jsonl": b'{"text": "one", "class": "a"}\n{"text": "two", "class": "b"}\n',
    ".txt": b"one\ntwo\n",
    ".parquet": b"PAR1\x15\x00\x15PAR1",
    ".csv.gz": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
}


def read_all(path, label):
    return read(f"file:{path}", text="text", **({"label": label} if label else {}))


@fuzzed(data=st.data(), kind=st.sampled_from(sorted(TABLES)), label=st.sampled_from(["", "class"]))
def test_tables(place, data, kind, label):
    (place / f"a{kind}").write_bytes(data.draw(damaged(TABLES[kind])))
    answers(read_all, place / f"a{kind}", label)
