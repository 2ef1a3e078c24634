"""Pages in one file, made of a template, style, script and data."""

import json
import re
from pathlib import Path
from typing import Any

SHELL = Path(__file__).parent


def filled(page: Path, data: Any, **texts: str) -> str:
    """Fills a page's template.

    Args:
      page: The HTML template of the body, which follows the shell's head. `{{STYLE}}`, `{{SCRIPT}}` and `{{DATA}}`
        stand for the shell's and the page's style, the page's script, and the data; `{{NAME}}` stands for a text.
      data: A value that JSON can hold.
      texts: HTML by name; `TITLE` is needed.
    """
    contents = {
        "STYLE": "\n".join(_read(path) for path in (SHELL / "shell.css", page.with_suffix(".css"))),
        "SCRIPT": _read(page.with_suffix(".js")),
        "DATA": json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        **texts,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: contents[mark[1]], _read(SHELL / "shell.html") + _read(page))


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
