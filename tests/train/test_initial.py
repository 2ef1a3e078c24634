"""A run that starts from another's parameters has them, and names those that it has not."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from attention import UsageError
from tests.train.conftest import arguments
from train import loading, main
from train.decode import trained
from train.setup import Setup
from train.start import AnotherRun, Initial

DISTILLED = (
    r"Distilled in 40 steps; squared error relative to the output's square: block_0/attention ([\d.]+) -> ([\d.]+)."
)
pytestmark = [pytest.mark.more, pytest.mark.xdist_group(__name__)]


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("before") / "run"
    options = {"train__length": "3 steps", "train__eval_every": "3 steps", "train__ema": 0.5}
    assert main.main(arguments(workdir, **options)) == 0
    return workdir


def setup_of(**changes):
    flags, overrides = main.parse(arguments("unused", **changes))
    return Setup.of(loading.resolve(flags.config, overrides)[0])


def started(**changes):
    setup = setup_of(**changes)
    with jax.set_mesh(setup.replicas.mesh):
        return setup.fresh(Initial.of(setup))


def test_what_fits_is_taken_and_the_rest_is_named(before):
    _, params = trained.load(before, "best")
    state, remark = started(train__init_from=before, model__attention="efficient", model__mlp=16, data__mixup=0.1)
    theirs, ours = flatten_dict(params, sep="/"), flatten_dict(state.params, sep="/")
    same = {path for path in ours if path in theirs and np.array_equal(ours[path], theirs[path])}
    assert {"embed/kernel", "head/kernel", "block_0/attention/out/kernel"} <= same
    assert "block_0/mlp/up/kernel" not in same
    assert "Skipped: block_*/" in remark
    assert "block_0/mlp/up/kernel is (16, 32) there and (16, 16) here" in remark


def test_keep_is_the_mechanism_of_the_other_run(before):
    there = json.loads((before / "config.json").read_text())["model"]["attention"]
    assert setup_of(train__init_from=before, model__attention="keep").config.model.attention == there


def test_an_exchanged_layer_learns_the_outputs_of_the_layer_before(before):
    options = {"train__init_from": before, "model__attention": "neural(dim=2)"}
    plain, _ = started(**options)
    state, remark = started(**options, train__exchanged="distilled(steps=40, learning_rate=0.01)")
    first, last = map(float, re.fullmatch(DISTILLED, remark.splitlines()[-1]).groups())
    assert last < 0.5 * first
    ours, theirs = (flatten_dict(tree.params, sep="/") for tree in (state, plain))
    changed = {path for path in ours if not np.array_equal(ours[path], theirs[path])}
    assert changed
    assert all(path.startswith("block_0/attention/") for path in changed)


def test_what_is_fresh_again_has_new_values_of_the_usual_size(before):
    """They are not the initial values of the other run, which has the same seed."""
    _, params = trained.load(before, "best")
    state, remark = started(train__init_from=before, train__fresh="attention/out/")
    plain, _ = started()
    assert "Fresh again: block_*/attention/out/" in remark
    ours, theirs, new = (flatten_dict(tree, sep="/") for tree in (state.params, params, plain.params))
    for path, value in ours.items():
        if "/attention/out/kernel" not in path:
            np.testing.assert_array_equal(value, (new if "/attention/out/" in path else theirs)[path])
            continue
        assert np.std(value) == pytest.approx(np.std(new[path]), rel=0.2)
        for other in (new, theirs):
            assert abs(np.corrcoef(np.ravel(value), np.ravel(other[path]))[0, 1]) < 0.2


def test_each_seed_may_start_from_a_run_of_its_own(before):
    options = {"train__init_from": str(before)[:-1] + "{seed}"}
    shutil.copytree(before, options["train__init_from"].format(seed=3), dirs_exist_ok=True)
    assert Initial.of(setup_of(seed=3, **options)).run.place == before.with_name("ru3")
    with pytest.raises(UsageError, match="so seeds train one by one"):
        setup_of(train__replicas=2, **options)


def test_mistakes_are_said_before_anything_is_written(before, tmp_path):
    replicas = json.loads((before / "config.json").read_text())
    replicas["train"]["replicas"] = 2
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "config.json").write_text(json.dumps(replicas))
    loads, like = {"train__init_from": before}, {"train__exchanged": "like"}
    for changes, message in (
        ({"train__init_from": tmp_path}, "it has no config.json"),
        ({"train__init_from": tmp_path / "two"}, "of 2 replicas; give a run of one"),
        ({"optimizer__freeze": "hed/"}, r"'hed/', which matches none of the 21 parameters, such as \['head/"),
        (loads | {"train__fresh": "attn/"}, "'attn/', which matches none of the 21 parameters"),
        ({"train__fresh": "key/"}, "for a model whose weights are loaded; set model.pretrained or train.init_from"),
        (loads | like, "and there is none; set it to fresh"),
        (like, "set model.pretrained or train.init_from"),
        (loads | like | {"model__attention": "neural", "model__mlp": 16}, "model.mlp differs from the"),
    ):
        with pytest.raises(UsageError, match=message):
            Initial.of(setup_of(**changes))
    assert main.main(arguments(tmp_path / "run", train__init_from=tmp_path)) == 2
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_without_the_run_that_it_started_from(before, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(before, source)
    options = {"train__init_from": source, "train__eval_every": "1 steps"}
    assert main.main(arguments(tmp_path / "run", train__length="1 steps", **options)) == 0
    shutil.rmtree(source)
    assert main.main(arguments(tmp_path / "run", train__length="2 steps", **options)) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 2


def test_a_model_that_shares_nothing_is_refused(before):
    with pytest.raises(
        UsageError, match=r"no parameter with the name and shape of one here: it has block_0/.* and so on"
    ):
        AnotherRun.of(str(before), {}).load({"embed": {"kernel": jnp.zeros((3, 5))}, "other": jnp.zeros(2)})


def test_other_tokens_are_refused(before, tmp_path):
    (before / "tokeniser.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has learned other tokens \(tokeniser.json differs\); set its tokeniser"):
        AnotherRun.of(str(before), {"tokeniser.json": "[]"})
    AnotherRun.of(str(before), {"tokeniser.json": "{}"})
