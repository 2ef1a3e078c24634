"""The time of an evaluation is that of its steps, without compiling them or writing texts."""

import time
import types

import jax
import jax.numpy as jnp
import numpy as np

from train.config.schema import MeshConfig
from train.mesh import sharding
from train.mesh.replicas import Replicas
from train.run.evaluations import Evaluator
from train.tasks import Task


class Slow(Task):
    """A task of three batches of a second each, 100 seconds of compiling and 1,000 seconds of writing."""

    units_per_example = 5

    def __init__(self):
        self.now = 0.0
        self.sources = {"test": types.SimpleNamespace(why_host=lambda training: "they are made here")}

    def eval_examples(self, split):
        return 10

    def eval_batches(self, split, process_index, process_count):
        for size in (4, 4, 2):
            self.now += 1
            yield {"x": np.ones(size, np.float32), "index": np.arange(size)}

    def measures(self, params, batch, key):
        self.now += 100
        return {"loss": params * batch["x"], "weight": batch["x"]}

    def measured(self, split, params, mesh):
        self.now += 1000
        return {}


def test_neither_compiling_nor_writing_counts(monkeypatch):
    task = Slow()
    monkeypatch.setattr(time, "perf_counter", lambda: task.now)
    mesh = sharding.make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1])
    evaluator = Evaluator(task, Replicas([0], mesh))
    for _ in range(2):
        measured, speed = evaluator("test", jnp.float32(3))
        assert [one.metrics for one in measured] == [{"loss": 3.0}]
        assert speed == 10 * 5 / 3
    assert task.now == 2 * 100 + 2 * (3 + 1000)
