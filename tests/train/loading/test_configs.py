"""Every config builds; every leaf is read; every mistake is one sentence."""

import dataclasses
import pathlib

import jax.numpy as jnp
import pytest

from attention import UsageError
from models.gpt import GPT, GPTConfig
from models.published import pretrained
from tests.models.small import random_params
from tests.sizes import once
from tests.train import small_tasks
from train import loading, loop
from train.loading.leaves import flatten
from train.main import main
from train.setup import Setup

FILES = sorted(p.name for p in (loading.PACKAGE / "configs").glob("*.py") if p.stem not in ("__init__", "defaults"))


OTHERS = ("_super.py", "seq2seq_dates.py", "cnn_digits.py", "gpt_published.py", "trial_cpu.py", "trial_published.py")


@pytest.mark.parametrize("file", FILES)
def test_configs_are_valid_plain_and_without_none_and_take_a_mechanism(file):
    plain = loading.load(f"configs/{file}").to_dict()
    loading.validate(plain)
    leaves = flatten(plain).values()
    assert {type(value) for value in leaves} <= {str, int, float, bool, tuple}
    assert not any(pathlib.PurePath(value).is_absolute() for value in leaves if isinstance(value, str))
    if not file.endswith(OTHERS):
        assert loading.validate(loading.load(f"configs/{file}:efficient").to_dict()).model.attention == "efficient"


def test_a_published_model_is_described_by_its_folder(tmp_path):
    model = GPTConfig(name="gpt", depth=1, width=8, heads=2, mlp=12, positions="learned", attention_bias=True)
    params = random_params(GPT(model, 11, 6), jnp.zeros((1, 2), jnp.int32))["params"]
    pretrained.export(str(tmp_path), model, params)
    config = loading.validate(loading.load(f"configs/gpt_published.py:{tmp_path}").to_dict())
    assert dataclasses.replace(config.model, pretrained="") == model
    assert (config.data.vocabulary, config.data.tokeniser) == (11, f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("spec", "mechanisms"),
    [
        ("seq2seq_dates.py:encoder_qkv", {"attention": "encoder_qkv"}),
        ("cnn_digits.py:none|cbam(ratio=4)", {"attention": "none|cbam(ratio=4)"}),
        (
            "translate_anki.py:gaussian",
            {"decoder_attention": "gaussian(sigma=0.01)", "cross_attention": "gaussian(sigma=0.05)"},
        ),
    ],
)
def test_configs_take_variants_of_their_own(spec, mechanisms):
    model = loading.validate(loading.load(f"configs/{spec}").to_dict()).model
    assert {field: getattr(model, field) for field in mechanisms} == mechanisms


def recorded(config, read, prefix=""):
    """Copies a config's dataclasses so that they note the path of every leaf that is read."""
    values = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        path = prefix + field.name
        values[field.name] = recorded(value, read, path + ".") if dataclasses.is_dataclass(value) else value

    class Recorded(type(config)):
        def __getattribute__(self, name):
            if name in values:
                read.add(prefix + name)
            return super().__getattribute__(name)

        # Compiling hashes all fields and Grain prints them, which is no use of them.
        __hash__, __eq__, __repr__ = object.__hash__, object.__eq__, object.__repr__

    copy = object.__new__(Recorded)
    for name, value in (vars(config) | values).items():  # what is made of fields once is read of the original
        object.__setattr__(copy, name, value)
    if hasattr(copy, "_read_layers"):
        copy._read_layers()
    return copy


# Only for sources beyond the machine, see tests/train/data.
REMOTE = {"data.revision", "data.streaming", "data.data_dir"}
PAIRS = {"data__translations": 3, "data__beams": 2, "data__buckets": ""}  # each bucket is a program
TASKS = {
    "vit_digits": ({}, REMOTE - {"data.streaming"}),
    "gpt_pydoc": ({}, REMOTE),
    "mlm_pydoc": ({}, REMOTE),
    "classify_imdb": ({"optimizer__schedule": "cosine"}, REMOTE),
    "translate_dates": (PAIRS, REMOTE),
    "seq2seq_dates": (PAIRS, REMOTE),
    "caption_digits": ({"data__translations": 3, "model__encoder": "vit(patch=8)"}, REMOTE),
}


@pytest.mark.parametrize("name", once(TASKS, ["gpt_pydoc"]))
def test_every_leaf_is_read(tmp_path, name):
    changes, unneeded = TASKS[name]
    config = small_tasks.config_of(name, tmp_path, train__length="2 steps", **changes)
    plain, read = dataclasses.asdict(config), set()
    loop.train_and_evaluate(recorded(config, read), plain, tmp_path / "run")
    unread = set(flatten(plain)) - read
    assert unread == {"model.name"} | unneeded  # the name chooses the dataclass, see test_mistakes_are_one_sentence


def test_overrides_keep_their_types():
    texts = {"optimizer.learning_rate": "1", "seed": "7", "model.attention": "efficient|super"}
    config, plain = loading.resolve("configs/vit_digits.py", texts)
    assert (config.optimizer.learning_rate, config.seed, config.model.attention) == (1.0, 7, "efficient|super")
    assert type(plain["optimizer"]["learning_rate"]) is float


def test_the_default_config_is_found_from_any_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert loading.load("configs/vit_digits.py").model.attention == "super"
    assert loading.name_of("configs/vit_cifar100.py:super(per_head=True)") == "vit_cifar100-super_per_head_True_"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config=configs/vit_digit.py"], "'configs/vit_digit.py'. Did you mean 'configs/vit_digits.py'?"),
        (["--config=configs/vit_cifar100_super.py:x"], "cannot take the argument 'x'"),
        (["--config=train/main.py"], "has no function get_config"),
        (["--config=README.md"], "configs are Python files"),
        (["vit_digits"], "write --config=configs/vit_digits.py, not 'vit_digits'."),
        (["--config.model.atention=super"], "Did you mean '--config.model.attention'? Nearest of 73: "),
        (["--config.model=super"], "Unknown config field '--config.model'"),
        (["--config.model.depth=two"], "--config.model.depth must be a whole number, but it is 'two'"),
        (["--config=vit_digits:supr"], "Did you mean 'super'?"),
        (["--config.model.name=vitt"], "Unknown model of the task image_classification 'vitt'. Did you mean 'vit'?"),
        (["--config.task=images"], "Unknown task 'images'. Valid: captioning, image_classification,"),
        (["--config.train.loss_chunk=8"], "train.loss_chunk=8 is for predictions of tokens, and image_classification"),
        (["--config.train.patience=3", "--config.train.eval_every=0 steps"], "train.patience=3 counts evaluations"),
        (["--config.train.length=0 steps"], "train.length must be more than 0, but it is '0 steps'"),
        ([f"--config.seed={2**32 - 2}", "--config.train.replicas=2"], "= 4294967294, but it is 4294967294"),
        (["--config.model.implementation=cudnn"], "it needs an NVIDIA GPU and this is cpu; it computes in bfloat16"),
        (["--config.mesh.data=3"], "mesh.data=3, mesh.fsdp=1, mesh.tensor=1 does not fit the one device here"),
        (["--config.mesh.data=-1", "--config.mesh.fsdp=-1"], "Only one axis of the mesh may be -1"),
        (["--config.data.eval_transforms=resize(size=12)"], "learned for 16 tokens, but this sequence has 36"),
        (["--workdir=pyproject.toml/below"], "pyproject.toml/below cannot be written (Not a directory)"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(arguments, message, capsys, monkeypatch, tmp_path):
    root = loading.PACKAGE
    compiled = []
    monkeypatch.setattr(Setup, "fresh", lambda *args: compiled.append(args))
    workdir = [] if any("workdir" in a for a in arguments) else [f"--workdir={tmp_path / 'run'}"]
    monkeypatch.chdir(root)
    assert main([*arguments, *workdir]) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""
    assert not compiled
    assert not (tmp_path / "run").exists()


ODD = """
import functools
from configs.vit_digits import get_config as base

def deep(outer):
    return functools.reduce(lambda inner, _: outer(inner), range(5000), outer(()))

def get_config():
    return """


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("3", "must return a ConfigDict, not int"),
        ("3\n1 / 0", "fails: ZeroDivisionError: division by zero"),  # as it is read
        ("1 / 0", "fails: ZeroDivisionError: division by zero"),  # as it is called
        ("{'model': {3: 1}}", "is not a config: the name of a field must be a string, but it is 3"),
        ("deep(lambda inner: {'a': inner})", "is not a config: it is nested too deeply"),
        ("{'task': deep(lambda inner: (inner,))}", "task must be a string, but it is tuple, too large to write"),
        ("base().to_dict() | {'train': {}}", "The field train.init_from is missing; give it."),
        ("base().to_dict() | {'x': 1}", "Unknown field 'x'."),
        ("base().to_dict() | {'model': 3}", "model must be a section of fields, but it is 3"),
        ("base().to_dict() | {'model': {}}", "The field model.name is missing; give it."),
    ],
)
def test_config_files_that_give_no_config_are_one_sentence(tmp_path, made, message):
    (tmp_path / "odd.py").write_text(f"{ODD}{made}\n")
    with pytest.raises(UsageError) as raised:
        loading.resolve(str(tmp_path / "odd.py"), {})
    assert message in str(raised.value)


def test_the_list_has_a_line_for_each_config(capsys):
    assert main(["--config=list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[: lines.index("")]] == [path.removesuffix(".py") for path in FILES]
    assert max(map(len, lines)) <= 80
