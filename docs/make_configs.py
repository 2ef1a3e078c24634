"""Write `docs/configs.md` and a page of fields for each task, from docstrings and from what the dataclasses declare.

python -m docs.make_configs
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from attention.types import Multiple, Names, Unit
from models.fields import SETTING, FieldDeclaration
from train import cli
from train.loading.leaves import SECTIONS, leaves_of
from train.tasks import TASKS

DOCS = Path(__file__).parent
FILES = sorted((DOCS.parent / "configs").glob("*.py"))
INTRODUCTION = """# Config fields

These are the fields of all configs; each task has a page of its own fields. Each is overridden as
`--config.FIELD=VALUE`. A duration is a string with a unit, such as `90 epochs`, `20steps` or `5000 examples`. Optional
features are off at 0, '' or a duration of 0; no field is ever None. Defaults are the fields' own; a task or a config
file may set others. A run may continue with other values of fields that may change, and of those for bookkeeping (where
things are, how often something is written) and hardware; the last two do not tell settings apart in reports.

`python -m docs.make_configs` makes this page and those of the tasks from the code.

| `task` | its models |
| --- | --- |
{tasks}
## The configs

| `--config=configs/…` | what |
| --- | --- |
{files}"""
OF_A_TASK = """# Fields of {title}

These are the fields of the models and data of a config with `task='{name}'`. [Config fields](../configs.md) has the
others, and says how to read the table. [Mechanisms](../mechanisms.md) names the papers.
"""


def pages() -> dict[Path, str]:
    """Makes the text of each page."""
    return {DOCS / "configs.md": _common()} | {DOCS / f"fields/{name}.md": _of(name) for name in TASKS}


def _common() -> str:
    of_tasks = {cls for task in TASKS.values() for cls in (task.data_type, *task.model_types.values())}
    tasks = (f"| [`{name}`](fields/{name}.md) | {', '.join(TASKS[name].model_types)} |\n" for name in TASKS)
    sections = (_section(title, cls) for title, cls in SECTIONS.items() if cls not in of_tasks)
    return INTRODUCTION.format(tasks="".join(tasks), files="".join(_files())) + "".join(sections)


def _of(name: str) -> str:
    task = TASKS[name]
    models = (_section(f"Model `{model}`", cls) for model, cls in task.model_types.items())
    return (
        OF_A_TASK.format(title=name.replace("_", " "), name=name) + "".join(models) + _section("Data", task.data_type)
    )


def _files() -> Iterator[str]:
    for file in FILES:
        if file.stem not in ("__init__", "defaults"):
            about = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))).splitlines()[0]
            yield f"| `{file.name}` | {about} |\n"


def _section(title: str, cls: type) -> str:
    header = "| field | default | valid | role | meaning |\n| --- | --- | --- | --- | --- |\n"
    return f"\n## {title}\n\n{header}" + "".join(_rows(cls))


def _rows(cls: type) -> Iterator[str]:
    for path, leaf in leaves_of(cls).items():
        default = getattr(cls, path.removeprefix(cls.PATH))
        cells = (f"`{path}`", f"`{default!r}`", _valid(leaf), _role(leaf), leaf.help)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _valid(leaf: FieldDeclaration) -> str:
    names = [f"`{name}`" for name in leaf.valid.note(Names, ())]
    multiple = [f"a multiple of `{field}`" for field in [leaf.valid.note(Multiple)] if field]
    unit = [f"in {unit}" for unit in [leaf.valid.note(Unit)] if unit]
    return ", ".join(filter(None, [*names, leaf.valid.range, *multiple, *unit]))


def _role(leaf: FieldDeclaration) -> str:
    if leaf.sweep:
        return f"`{leaf.sweep}` of a sweep"
    return f"{leaf.role}, may change" if leaf.role == SETTING and leaf.changeable else leaf.role


@cli.program(__doc__)
def main(_: argparse.Namespace) -> None:
    """Writes the pages."""
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
