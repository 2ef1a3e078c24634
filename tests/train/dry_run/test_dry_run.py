"""Every config's step traces without data, a few compile on fake devices, and stated sizes are those of the data."""

import json
import math
import re
import types

import jax
import pytest

from attention import UsageError
from tests.sizes import more, once
from tests.train import small_tasks
from tests.train.loading.test_configs import FILES
from train import loading, tasks
from train.dry_run.dry import DryRun
from train.main import main
from train.mesh.memory import replicated, scaled
from train.mesh.sharding import parameter_spec
from train.optimizer import Rates

SHALLOW = {"model.depth": "1", "model.decoder_depth": "1", "model.attention": "dot_product"}
OFFLINE = {
    "vit_digits": {"data__mixup": 0.2},
    "gpt_pydoc": {"data__eval_stride": 8},
    "translate_dates": {"data__buckets": ""},
}


def resolved(file, overrides):
    """Resolves a config with those overrides for which it has fields."""
    plain = loading.load(f"configs/{file}").to_dict()
    known = {field for section in ("model", "data") for field in (f"{section}.{leaf}" for leaf in plain[section])}
    chosen = {field: text for field, text in overrides.items() if field in known | {"train.accumulate"}}
    return loading.resolve(f"configs/{file}", chosen)[0]


@pytest.mark.parametrize("file", once([file for file in FILES if file != "vit_cifar100_super.py"], ["cnn_digits.py"]))
def test_every_config_has_a_step_without_data(file):
    overrides = {} if file in ("seq2seq_dates.py", "cnn_digits.py") else SHALLOW
    config = resolved(file, overrides)
    dry = DryRun.of(config)
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), dry.batch)
    state, report = jax.eval_shape(dry.setup.step, dry.state, one, jax.random.key(0), Rates(0.1, 0, 1))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(lambda x: (x.shape, x.dtype), dry.state)
    assert report["sums"]["loss"].shape == ()
    assert {x.shape[:2] for x in dry.batch.values()} == {(1, config.data.batch_size)}


@pytest.mark.filterwarnings("error:Explicitly requested dtype")  # of dtypes that devices do not have
@pytest.mark.parametrize("name", once(OFFLINE, ["vit_digits"]))
def test_shapes_are_those_of_the_data(name, tmp_path):
    config = small_tasks.config_of(name, tmp_path, **OFFLINE[name])
    dry, task = DryRun.of(config), tasks.find(config.task)(config)
    batches = task.train_batches(0, 1)
    real = {field: (array.shape, jax.dtypes.canonicalize_dtype(array.dtype)) for field, array in next(batches).items()}
    batches.close()
    assert {field: (x.shape[1:], x.dtype) for field, x in dry.batch.items()} == real
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, shapes) == jax.tree.map(lambda x: x.shape, dry.state.params)


COMPILED = {
    "vit_digits": ({"model.heads": "4"}, "2x2x2", "32 examples"),
    "gpt_pydoc": ({"model.width": "64", "model.mlp": "128", "data.context": "64"}, "1x4x2", "1,024 tokens"),
    "translate_dates": ({"data.buckets": "", "model.decoder_depth": "1"}, "4x1x2", "64 examples"),
}
AXES = ("data", "fsdp", "tensor")
CHECK = """
import json, sys
from train import loading
from train.dry_run import dry
from train.mesh import memory
config, _ = loading.resolve(sys.argv[1], dict(pair.split("=", 1) for pair in sys.argv[2:]))
run = dry.DryRun.of(config)
plan = run.lower().compile().memory_analysis()
print(json.dumps([plan.argument_size_in_bytes, *(memory.bytes_a_device(x) for x in (run.state, run.batch))]))
"""


@pytest.mark.more
@pytest.mark.parametrize("name", once(COMPILED, ["vit_digits"]))
def test_a_compiled_step_says_what_it_takes(name, run_python, tmp_path):
    overrides, mesh, units = COMPILED[name]
    axes = dict(zip((f"mesh.{axis}" for axis in AXES), mesh.split("x"), strict=True))
    overrides = {field: text for field, text in SHALLOW.items() if "decoder" not in field} | overrides | axes
    flags = [f"--config.{field}={text}" for field, text in overrides.items()]
    before = set((loading.PACKAGE / "runs").glob("*"))
    printed = run_python("-m", "train.main", "--dry-run", f"--config=configs/{name}.py", *flags).stdout
    assert set((loading.PACKAGE / "runs").glob("*")) == before
    config, _ = loading.resolve(f"configs/{name}.py", overrides | {f"mesh.{axis}": "1" for axis in AXES})
    state = DryRun.of(config).state
    parameters = sum(leaf.size for _, leaf in leaves_of(state.params))
    assert f"Dry run of dot_product: {parameters:,} parameters" in printed
    assert "Devices: 8 fake cpu, mesh data {} x fsdp {} x tensor {}\n".format(*mesh.split("x")) in printed
    assert f"A step: {units}, " in printed
    sizes = dict(zip(AXES, map(int, mesh.split("x")), strict=True))
    expected = sum(4 * leaf.size // split_into(path, leaf, sizes) for path, leaf in leaves_of(state.params))
    assert f"Memory a device: parameters {scaled(expected, 'B')}, optimizer" in printed
    counted, by_xla = (number(text) for text in re.search(r"(\S+ \w+FLOP) counted, (\S+ \w+FLOP)", printed).groups())
    assert 0.7 < by_xla / counted < 1.6


def leaves_of(tree):
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in flat]


def split_into(path, leaf, sizes):
    """Counts the parts into which the rules split an array."""
    spec = parameter_spec(path, leaf.shape, types.SimpleNamespace(shape=sizes))
    return math.prod(sizes[axis] for axis in spec if axis)


def number(text):
    """Reads `1.5 MFLOP` as 1,500,000."""
    digits, unit = text.split()
    return float(digits) * 1000 ** " kMGT".index(unit.removesuffix("FLOP") or " ")


@pytest.mark.more
def test_memory_of_the_state_is_what_xla_plans_for(run_python):
    flags = ["model.depth=1", "model.attention=dot_product", "mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]
    done = run_python("-c", CHECK, "configs/vit_digits.py", *flags, devices=8)
    arguments, state, batch = json.loads(done.stdout)
    others = 4 + 8 + 3 * 4  # the number of steps, the key, and the rates
    assert state <= arguments <= state + batch + others  # what of the batch no step reads is no argument


def test_what_is_whole_is_listed_largest_first():
    config = resolved("vit_digits.py", SHALLOW)
    found = replicated(DryRun.of(config).state.params)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert found["block_0/mlp/up/kernel"] == 4 * 64 * 256


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--dry-run", "--workdir=x"], "--dry-run writes nothing; leave out --workdir."),
        (["--dry-run", "--coordinator=a:1"], "--dry-run takes one process; leave out --coordinator."),
        (["--dry-run", "--config=list"], "--config=list prints the configs; leave out --dry-run."),
        (["--devices=8"], "--devices is for --dry-run"),
        (["--dry-run", "--devices=eight"], "--devices must be a whole number from 1 on, but it is 'eight'."),
        (["--dry-run=yes"], "--dry-run takes no value: write --dry-run alone."),
        (["--dry-run", "--config.mesh.data=1000000000"], "has 1000000000 devices, and a dry run makes at most 65536"),
        (["--topology=v5e:2x2"], "--topology is for --dry-run"),
        more(["--dry-run", "--topology=v5e:2x2", "--devices=4"], "leave out --devices"),
    ],
)
def test_mistakes_in_flags_are_one_sentence(flags, message, refused):
    assert message in refused(main, flags)


@pytest.mark.parametrize(
    ("file", "overrides", "field"),
    [
        ("classify_imdb", {"data.source": "file:reviews.csv"}, "data.classes"),
        ("vit_digits", {"data.source": "numpy:mine.npz"}, "data.image_shape"),
        ("gpt_pydoc", {"data.tokeniser": "file:tokeniser.json"}, "data.vocabulary"),
        ("translate_iwslt", {"data.target_tokeniser": "hf:some/name"}, "data.target_vocabulary"),
    ],
)
def test_what_is_not_stated_is_asked_for(file, overrides, field):
    config, _ = loading.resolve(f"configs/{file}.py", overrides)
    with pytest.raises(UsageError, match=rf"Without data, nothing says what {field} is; give --config.{field}="):
        DryRun.of(config)
    stated, _ = loading.resolve(f"configs/{file}.py", overrides | {field: "6x6x3" if "shape" in field else "300"})
    assert getattr(stated.data, field.removeprefix("data.")) in ("6x6x3", 300)


@pytest.mark.parametrize(
    ("file", "overrides", "message"),
    [
        ("vit_digits", {"data.classes": "7"}, "data.classes is 7, but the data have 10; set --config.data.classes=10"),
        ("vit_digits", {"data.image_shape": "9x8x1"}, "data.image_shape is 9x8x1, but the data have 8x8x1"),
        ("gpt_pydoc", {"data.vocabulary": "256"}, "data.vocabulary is 256, but the data have 260"),
        ("translate_dates", {"data.source_vocabulary": "99"}, "data.source_vocabulary is 99, but the data"),
        ("classify_imdb", {"data.classes": "3"}, "data.classes is 3, but the data have 2"),
    ],
)
def test_what_is_stated_is_checked_against_the_data(file, overrides, message, tmp_path):
    config = small_tasks.config_of(file, tmp_path, **overrides)
    with pytest.raises(UsageError) as raised:
        tasks.of(config)
    assert message in str(raised.value)
