"""The smallest slice that a step fits on: which slices are compiled for, and what is kept. No compiler is needed."""

import json
from types import SimpleNamespace

import jax
import pytest

from benchmarks import pods
from train.dry_run import chips
from train.mesh.compilation import TooLarge

GB = 10**9


class Planned:
    """A step of 40 GB of state and 10 GB of gradients over all chips, and 8 GB a chip of activations."""

    def __init__(self, config, devices):
        self.chips, self.state = len(devices), SimpleNamespace(params="params")
        data = SimpleNamespace(data=SimpleNamespace(batch_size=16))
        self.setup = SimpleNamespace(about={"parameters": 10}, config=data)

    of = classmethod(lambda cls, config, devices: cls(config, devices))

    def compile(self):
        if 50 * GB / self.chips + 8 * GB > chips.CHIPS["v5e"].memory:
            raise TooLarge(50 * GB / self.chips + 8 * GB, 16 * GB)
        return self

    def memory(self, _):
        return {"parameters": 40 * GB // self.chips, "batch": 5, "gradients and activations": 8 * GB}


@pytest.fixture
def planned(monkeypatch):
    compiled = []
    monkeypatch.setattr(pods.topology, "devices", lambda name: [SimpleNamespace()] * int(name.split("x")[-1]) ** 2)
    monkeypatch.setattr(pods.topology, "SHAPES", {"v5e": ("1x1", "2x2", "4x4", "8x8")})
    monkeypatch.setattr(pods.dry, "DryRun", Planned)
    monkeypatch.setattr(pods.memory, "bytes_a_device", lambda tree: 10 * GB if tree == "params" else 5 * GB)
    monkeypatch.setattr(
        pods.loading, "resolve", lambda spec, overrides: compiled.append((spec, overrides)) or (None, {})
    )
    return compiled


def test_the_smallest_slice_is_found_and_smaller_ones_are_told(planned):
    row = pods.smallest(pods.CASES["GPT of 7 B"], "dot_product")
    assert (row["topology"], [tried["topology"] for tried in row["smaller"]]) == ("v5e:4x4", ["v5e:1x1", "v5e:2x2"])
    assert row["smaller"][-1]["needs"] == 50 * GB / 4 + 8 * GB
    spec, overrides = planned[-1]
    assert spec == "configs/gpt_modern_pydoc.py:dot_product"
    assert (overrides["data.batch_size"], overrides["train.accumulate"]) == ("16", "1")
    assert "`v5e:4x4`) | 10.50 | 2.50 | 20.5 |" in pods.table([{"name": "a", "attention": "b"} | row])


def test_rows_that_are_kept_are_not_compiled_again(planned, tmp_path, capsys):
    kept = tmp_path / "pods.json"
    assert pods.main(["--only=GPT of 7 B", f"--out={kept}"]) == 0
    assert [row["attention"] for row in json.loads(kept.read_text())["rows"]] == ["dot_product", "neural(dim=2)"]
    planned.clear()
    assert pods.main(["--only=GPT of 7 B", f"--keep={kept}"]) == 0
    assert not planned


@pytest.mark.more
def test_the_gpts_have_the_parameters_that_their_names_say():
    for name, count in (("GPT of 1.3 B", 1.3e9), ("GPT of 7 B", 6.7e9)):
        config, _ = pods.loading.resolve(
            "configs/gpt_modern_pydoc.py:dot_product", pods.overrides(pods.CASES[name], 16)
        )
        model = config.model.build(32000, 8192)
        shapes = jax.eval_shape(model.init, jax.random.key(0), jax.ShapeDtypeStruct((1, 8192), "int32"))
        assert sum(x.size for x in jax.tree.leaves(shapes)) == pytest.approx(count, rel=0.05)
