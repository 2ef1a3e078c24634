"""The leaves of all configs, as their dataclasses declare them."""

import dataclasses
import functools
from typing import Any

from flax.traverse_util import flatten_dict

from models.fields import FieldDeclaration, declared
from train.config.optimizer import OptimizerConfig
from train.config.schema import Config, MeshConfig, TrainConfig
from train.tasks import TASKS

flatten = functools.partial(flatten_dict, sep=".")  # {"a": {"b": 1}} becomes {"a.b": 1}

SECTIONS: dict[str, type] = {
    "The experiment": Config,
    **{f"`model`, for `{name}`": cls for task in TASKS.values() for name, cls in task.model_types.items()},
    **{f"`data`, for `{name}`": task.data_type for name, task in TASKS.items()},
    "`optimizer`": OptimizerConfig,
    "`train`": TrainConfig,
    "`mesh`": MeshConfig,
}


def leaves_of(cls: type) -> dict[str, FieldDeclaration]:
    """Lists the leaves of a section's dataclass by path, such as `model.depth`."""
    return {cls.PATH + name: leaf for name, leaf in declared(cls).items() if leaf.help}  # a section has no help


LEAVES = {path: leaf for cls in SECTIONS.values() for path, leaf in leaves_of(cls).items()}
CHANGEABLE = frozenset(path for path, leaf in LEAVES.items() if leaf.changeable)  # between two starts of a run
NOT_SETTINGS = frozenset(path for path, leaf in LEAVES.items() if not leaf.tells_apart)


def completed(config: dict[str, Any]) -> dict[str, Any]:
    """Restores a config stored as JSON: lists become tuples, and fields that were declared later get their defaults."""
    config = _tupled(config)
    task = TASKS.get(str(config.get("task")))
    sections = {"optimizer": OptimizerConfig, "train": TrainConfig, "mesh": MeshConfig}
    if task and isinstance(config.get("model"), dict):
        sections |= {"data": task.data_type, "model": task.model_types.get(str(config["model"].get("name")))}
    return config | {
        name: {field.name: field.default for field in dataclasses.fields(cls)} | config[name]
        for name, cls in sections.items()
        if cls and isinstance(config.get(name), dict)
    }


def _tupled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tupled(inner) for name, inner in value.items()}
    return tuple(map(_tupled, value)) if isinstance(value, list) else value
