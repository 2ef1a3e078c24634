"""Work directories that look finished, with figures of the test's own."""

import json

import pytest

from analysis import runs
from tests.analysis import tried as trials
from train import loading


@pytest.fixture
def tried():
    """A table of trials; see `tests.analysis.tried`."""
    return trials.table()


@pytest.fixture(scope="session")
def config():
    return loading.load("configs/vit_digits.py").to_dict()


@pytest.fixture(scope="session")
def write_run(config):
    """Writes a run of 4 epochs of 1,000 examples with a curve of evaluations; fields are given as `model__heads=2`."""

    def write(path, seed=0, accuracy=0.9, curve=(0.5, 0.7, 0.8, 0.85), finished=True, **changes):
        costs = {"seconds": 8.0, "parameters": 1000, "training_flops_per_example": 10, "steps": 40, "loss": 0.1}
        costs |= {name: changes.pop(name) for name in list(changes) if "__" not in name}
        test = costs.pop("test", {"accuracy": accuracy, "loss": costs.pop("loss")})
        plain = json.loads(json.dumps(config)) | {"seed": seed}
        plain["data"]["batch_size"] = 100
        for field, value in changes.items():
            section, name = field.split("__")
            plain[section][name] = value
        steps, seconds, parts = costs["steps"], costs["seconds"], range(1, len(curve) + 1)
        lines = [{"step": round(steps * i / len(curve)), "seconds": seconds * i / len(curve)} for i in parts]
        record = [line | {"split": "train", "accuracy": a + 0.1} for line, a in zip(lines, curve, strict=True)]
        record += [line | {"split": "validation", "accuracy": a} for line, a in zip(lines, curve, strict=True)]
        result = costs | {"best_step": steps, "best": {"test": test}, "attention_layer_parameters": 100}
        result |= {"seconds_per_epoch": seconds / 4, "peak_memory_bytes": 5e6}
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(plain))
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in record))
        if finished:
            (path / "result.json").write_text(json.dumps(result))

    return write


@pytest.fixture
def write_runs(write_run):
    """Writes a run for each seed of settings, given by their fields and the accuracies of seeds from `first` on."""

    def write(folder, settings, first=0, **costs):
        for label, (fields, accuracies) in settings.items():
            for seed, accuracy in enumerate(accuracies, first):
                write_run(folder / label / f"seed{seed}", seed, accuracy, **fields, **costs)
        return runs.find([folder])

    return write


@pytest.fixture
def undrawn(monkeypatch):
    """Makes reports without pictures, which take most of the time."""
    monkeypatch.setattr("analysis.report._draw", lambda *_: None)


def attention(**accuracies):
    """Makes settings for `write_runs` that differ in their mechanism."""
    return {name: ({"model__attention": name}, values) for name, values in accuracies.items()}
