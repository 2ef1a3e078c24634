"""Loading: from a command line to a validated config, with `ml_collections` for the values and our own errors."""

import ast
import inspect
import runpy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention import specs
from attention.defining import files as code
from attention.errors import UsageError, check_known, unknown
from attention.types import Valid, build, check, shown
from models.files import at_home, read_json
from models.published import pretrained
from models.surgery.exchange import keeps, kept
from models.transformer import TransformerConfig
from train import tasks
from train.config.schema import SEED, Config
from train.loading.leaves import LEAVES, flatten

LISTED = (
    "python -m train.main --config=configs/NAME.py[:ARGUMENT] trains one; its",
    "file says more. docs/mechanisms.md names the papers.",
)
PACKAGE = Path(__file__).resolve().parents[2]


def resolve(spec: str, overrides: Mapping[str, str]) -> tuple[Config, dict[str, Any]]:
    """Reads the config of a command line, validated and as plain values.

    The overrides are texts of values by leaf, such as `model.depth`; see `load` for the `spec`.
    """
    config = load(spec)
    for field, text in overrides.items():
        override(config, field, text)
    _forget_sizes(config, overrides)
    _keep_mechanisms(config)
    plain = config.to_dict()
    return validate(plain), plain


def load(spec: str) -> ConfigDict:
    """Loads the config of a file, `path/to/file.py` or `path/to/file.py:argument`.

    A relative path is looked up in the current folder, then beside this package; `vit_digits` is one of its configs.
    """
    text, _, argument = spec.partition(":")
    path = next((p for p in (Path(text), PACKAGE / text, PACKAGE / f"configs/{text}.py") if p.is_file()), None)
    if path is None:
        raise unknown("config file", text, [f"configs/{path.name}" for path in files()])
    if path.suffix != ".py":
        raise UsageError(f"{path} is not a config: configs are Python files, such as configs/vit_digits.py.")
    get_config = _run_user_code(path, lambda: runpy.run_path(str(path), run_name="config")).get("get_config")
    if get_config is None:
        raise UsageError(f"{path} is not a config: it has no function get_config.")
    arguments = (argument,) if argument else ()
    try:
        inspect.signature(get_config).bind(*arguments)
    except TypeError as error:
        raise UsageError(f"{path} cannot take the argument {argument!r}: {error}.") from error
    config = _run_user_code(path, lambda: get_config(*arguments))
    if not isinstance(config, Mapping | ConfigDict):
        raise UsageError(f"get_config of {path} must return a ConfigDict, not {type(config).__name__}.")
    try:
        _check_names(config, path)
        code.allow(leaf for leaf in flatten(ConfigDict(config).to_dict()).values() if isinstance(leaf, str))
        return ConfigDict(config).lock()
    except RecursionError as error:
        raise UsageError(f"{path} is not a config: it is nested too deeply.") from error


def _check_names(section: Mapping | ConfigDict, path: Path) -> None:
    for name in section:
        if not isinstance(name, str):
            raise UsageError(f"{path} is not a config: the name of a field must be a string, but it is {shown(name)}.")
        if isinstance(section[name], Mapping | ConfigDict):
            _check_names(section[name], path)


def files() -> list[Path]:
    """Lists the files of this project's configs, sorted by name."""
    return sorted(p for p in (PACKAGE / "configs").glob("*.py") if p.stem not in ("__init__", "defaults"))


def listing() -> str:
    """Writes a line for each of this project's configs: its name and its docstring's first line."""
    texts = {path.stem: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) for path in files()}
    said = {name: text.splitlines()[0].replace("`", "") for name, text in texts.items()}
    width = max(map(len, said))
    lines = [f"{name:<{width}}  {line}" for name, line in said.items()]
    return "\n".join([*lines, "", *LISTED])


def _run_user_code(path: Path, run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        raise UsageError(f"The config file {path} fails: {type(error).__name__}: {error}.") from error


def override(config: ConfigDict, field: str, text: str) -> None:
    """Sets the leaf `a.b` to the command line's text, which must read as the leaf's type."""
    leaves = flatten(config.to_dict())
    check_known("config field", f"--config.{field}", [f"--config.{name}" for name in leaves])
    config.update_from_flattened_dict({field: _read(text, type(leaves[field]), field)})


def _read(text: str, kind: type, field: str) -> Any:
    if kind is str:
        return text
    value = literal({"true": "True", "false": "False"}.get(text, text))
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise UsageError(f"--config.{field} must be {Valid(kind).words}, but it is {text!r}.")
    return value


def _forget_sizes(config: ConfigDict, overrides: Mapping[str, str]) -> None:
    """Clears the sizes that the file states for its data if an override names other data without new sizes."""
    for path, leaf in LEAVES.items():
        changed = any(f"data.{field}" in overrides for field in leaf.size_of)
        size = path.removeprefix("data.")
        if changed and path not in overrides and size in config.data:
            config.data[size] = type(config.data[size])()


def _keep_mechanisms(config: ConfigDict) -> None:
    """Replaces each `keep` in the model's spec strings by the mechanisms of the source of its weights.

    The source is `train.init_from`, or else `model.pretrained`.
    """
    model, task = config.get("model"), tasks.TASKS.get(_text(config, "task"))
    kind = task.model_types.get(_text(model, "name")) if task and isinstance(model, ConfigDict) else None
    for field, depth in kind.STACKS.items() if kind and issubclass(kind, TransformerConfig) else ():
        spec = model.get(field)
        if isinstance(spec, str) and keeps(spec):
            model[field] = kept(spec, _source(config, field), model[depth])


def _text(section: ConfigDict, field: str) -> str:
    value = section.get(field)
    return value if isinstance(value, str) else ""


def _source(config: ConfigDict, field: str) -> str:
    if directory := config.train.init_from.replace(SEED, str(config.seed)):
        model = read_json(at_home(directory) / "config.json", "set train.init_from to a run's folder").get("model")
        spec = model.get(field) if isinstance(model, dict) else None
        if not isinstance(spec, str):
            raise UsageError(f"train.init_from={directory!r} is a run without model.{field}; name the mechanisms.")
        return spec
    if source := config.model.get("pretrained"):
        return pretrained.describe(source).fields[field]
    raise UsageError(
        f"model.{field}={config.model[field]!r} keeps the mechanisms of loaded weights; set model.pretrained or "
        "train.init_from, or name a mechanism."
    )


def literal(text: str) -> Any:
    """Reads a text as a Python literal; leaves one that is none."""
    try:
        return specs.literal(text)
    except ValueError:
        return text


def validate(config: Mapping[str, Any]) -> Config:
    """Makes the frozen dataclass of a whole config; a UsageError names what is wrong."""
    task = tasks.find(_needed(config, "task", str))
    name = _needed(_needed(config, "model", Mapping), "name", str, "model.")
    if name not in task.model_types:
        raise unknown(f"model of the task {config['task']}", name, task.model_types)
    return build(Config, config, kinds={"model": task.model_types[name], "data": task.data_type}, whole=True)


def _needed(section: Mapping[str, Any], field: str, kind: type, path: str = "") -> Any:
    if field not in section:
        raise UsageError(f"The field {path}{field} is missing; give it.")
    check(kind, section[field], path + field)
    return section[field]


def name_of(spec: str) -> str:
    """Names a run of a config: `configs/vit_cifar100.py:super` gives `vit_cifar100-super`."""
    path, _, argument = spec.partition(":")
    return "-".join(filter(None, (Path(path).stem, "".join(c if c.isalnum() else "_" for c in argument))))


def default_workdir(spec: str) -> Path:
    """Names the work directory of a run without --workdir, after its config and the time."""
    return Path("runs") / f"{name_of(spec)}-{time.strftime('%Y%m%d-%H%M%S')}"
