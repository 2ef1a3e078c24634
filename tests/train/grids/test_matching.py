"""Models are made as large, or trainings as costly, as the baseline's."""

import pytest

from attention import UsageError
from attention.operations import linear, mlp
from models.mechanisms import resolve
from train import loading
from train.grids import matching
from train.grids.matching import Request, nearest
from train.mesh import memory

SMALL = {"model.depth": "1", "model.width": "32", "model.mlp": "64", "train.length": "10 epochs"}


def request(attention, **changes):
    return Request(attention, "configs/vit_digits.py", SMALL | {"model.attention": attention} | changes)


def pair(attention):
    """Two settings and the baseline of both."""
    baseline = request("dot_product")
    return [baseline, request(attention)], [baseline, baseline]


def prepared(*requests, replicas="auto"):
    """Settings without baselines."""
    return matching.prepare(requests, requests, "", replicas)


@pytest.mark.parametrize("start", [1, 50, 3000])
def test_the_nearest_is_found_from_wherever_one_starts(start):
    looked = set()

    def square(number):
        looked.add(number)
        return number * number

    for wanted in (1, 2, 110, 111, 9801):
        assert nearest(square, wanted, start) == min(range(1, 3001), key=lambda n: abs(n * n - wanted))
    assert min(looked) >= 1


def closed_form(name, width, hidden):
    """Patches of 4 pixels, 16 positions, one block with two norms, a norm and ten classes."""
    projections = {"dot_product": 4, "super": 2}[name] * (width * width + width)
    block = projections + (16 * 16 + 16) * (name == "super") + 2 * width * hidden + hidden + width + 4 * width
    return (4 + 1 + 16) * width + block + 2 * width + 10 * width + 10


@pytest.mark.more
def test_parameters_match_within_1_percent_and_what_was_chosen_is_set_up_too(monkeypatch):
    checked, setup = [], Request.setup
    monkeypatch.setattr(Request, "setup", lambda request: checked.append(request) or setup(request))
    found = matching.prepare(*pair("super"), "parameters", "auto")
    assert checked[-1] == request("super").but(found.chosen["super"])
    assert found.chosen["dot_product"] == {}
    counts = []
    for name, chosen in found.chosen.items():
        sizes = {"model.width": "32", "model.mlp": "64"} | chosen
        width, hidden = int(sizes["model.width"]), int(sizes["model.mlp"])
        counts.append(closed_form(name, width, hidden))
        assert width % 4 == 0  # heads
    assert counts == list(found.sizes.values())
    assert abs(counts[1] / counts[0] - 1) <= 0.01
    assert int(found.chosen["super"]["model.width"]) > 32


def test_operations_match_by_the_length():
    found = matching.prepare(*pair("efficient"), "flops", "auto")
    ((field, length),) = found.chosen["efficient"].items()
    rest = mlp(16, 32, 64, 32) + linear(16, 4, 32).of_data + linear(1, 32, 10)
    layers = [resolve(name, 1)[0].cost(16, 32, 4) for name in ("dot_product", "efficient")]
    ratio = (layers[0] + rest).training / (layers[1] + rest).training
    assert field == "train.length"
    assert float(length.removesuffix(" epochs")) == pytest.approx(10 * ratio, rel=1e-4)
    assert found.sizes["efficient"] == pytest.approx(found.sizes["dot_product"], rel=0.01)


def test_long_runs_are_trained_apart_on_cpus_unless_asked_for():
    short = request("super")
    long = short.but({"train.length": "100000 steps"})
    assert prepared(short).together > 1
    assert prepared(short, long).together == 1
    assert prepared(short, long, replicas="yes").together > 1
    assert prepared(short, replicas="no").together == 1
    assert prepared(request("super", seed="7"), replicas="no").seed == 7


def test_no_more_are_trained_together_than_fit(monkeypatch):
    one = request("super").setup()
    state = memory.bytes_a_device(one.replicas.abstract(one.shapes))
    batch = one.config.data.batch_size * one.task.sources["train"].example_bytes
    monkeypatch.setattr(memory, "limit", lambda mesh: 5 * (matching.STATES * state + matching.BATCHES * batch) + 1)
    assert prepared(request("super"), replicas="yes").together == 5


@pytest.mark.more
def test_seeds_are_trained_apart_where_they_cannot_be_together(monkeypatch):
    """On accelerators they are together by default, but batches of several lengths cannot be stacked."""
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    assert prepared(request("super")).together > 1
    few = {"data.source": "dates(sources=('en',), targets=('de',), first=2000, last=2001)"}
    few |= {"data.validation_split": "validation", "data.test_split": "test"}
    buckets = Request("dates", "configs/translate_dates.py", few)
    assert prepared(buckets).together == 1
    with pytest.raises(UsageError, match=r"cannot stack; .* --replicas=no"):
        prepared(buckets, replicas="yes")


def test_a_model_without_mlps_gets_none():
    config = loading.resolve("configs/gpt_pydoc.py", {"model.mlp": "0"})[0]
    assert [*matching._knobs(config)] == ["width"]


@pytest.mark.more
def test_hidden_units_stay_divisible_over_the_mesh():
    split = request("super", **{"mesh.tensor": "2", "model.mlp": "66"})
    chosen = matching.matched_parameters(split, matching.parameters(request("dot_product").setup()))
    assert int(chosen["model.mlp"]) % 2 == 0


def test_published_weights_cannot_be_widened():
    wide = Request("mlp_roberta", "configs/mlm_wikitext103.py", {})
    with pytest.raises(UsageError, match="cannot change the width of mlp_roberta: its weights are published ones"):
        matching.matched_parameters(wide, 10**6)
