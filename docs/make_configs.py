"""Writes `docs/configs.md` from the docstrings of the configs and of the dataclasses that they become.

python -m docs.make_configs
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from models.fields import declared
from train.config.schema import Config, MeshConfig, TrainConfig
from train.optimizer import OptimizerConfig
from train.tasks import TASKS

PAGE = Path(__file__).parent / "configs.md"
FILES = sorted((Path(__file__).parent.parent / "configs").glob("*.py"))
MODELS = {name: cls for task in TASKS.values() for name, cls in task.model_types.items()}
SECTIONS = (
    ("", Config, "The experiment"),
    *(("model.", cls, f"`model`, for `{name}`") for name, cls in MODELS.items()),
    *(("data.", task.data_type, f"`data`, for `{name}`") for name, task in TASKS.items()),
    ("optimizer.", OptimizerConfig, "`optimizer`"),
    ("train.", TrainConfig, "`train`"),
    ("mesh.", MeshConfig, "`mesh`"),
)
PREFIXES = {prefix for prefix, _, _ in SECTIONS}
INTRODUCTION = """# Config fields

Every leaf of every config. All are overridden as `--config.FIELD=VALUE`. A duration is a string with its unit, such as
`90 epochs`, `20steps` or `5000 examples`. What can be switched off is so at 0, '' or a duration of 0 of a unit; no
field is ever None. [mechanisms.md](mechanisms.md) names the papers.

This page is made from the code by `python -m docs.make_configs`.

## The configs

| `--config=configs/…` | what |
| --- | --- |
"""
ATTRIBUTE = re.compile(r"^  (\w+): (.*(?:\n    .*)*)", re.MULTILINE)


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_files()) + "".join(_section(*section) for section in SECTIONS)


def _files() -> Iterator[str]:
    for file in FILES:
        if file.stem not in ("__init__", "defaults"):
            about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))).splitlines()[0]
            yield f"| `{file.name}` | {about} |\n"


def _section(prefix: str, cls: type, title: str) -> str:
    return f"\n## {title}\n\n| field | meaning |\n| --- | --- |\n" + "".join(_rows(prefix, cls))


def _rows(prefix: str, cls: type) -> Iterator[str]:
    documented = dict(row for base in reversed(cls.__mro__) for row in ATTRIBUTE.findall(inspect.getdoc(base) or ""))
    for name, declaration in declared(cls).items():
        text = declaration.help or documented[name]
        meaning = " ".join(text.split()).replace("|", "\\|")
        if f"{prefix}{name}." not in PREFIXES:
            yield f"| `{prefix}{name}` | {meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
