"""Text for a terminal: colours where the user wants them, and lines that fit."""

import io
import os
import re
import sys
import textwrap
from collections.abc import Sequence

from attention.errors import visible

COLUMNS = 80
BOLD, RED = "1", "1;31"
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


def styled(text: str, style: str, stream: io.TextIOBase) -> str:
    """Returns the text in an ANSI style, such as `BOLD`, if the stream shows colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if coloured(stream) else text


def coloured(stream: io.TextIOBase) -> bool:
    """Says whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def filled(text: str) -> str:
    """Wraps a line at `COLUMNS` and indents all lines but the first. Paths stay whole."""
    options = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(visible(text), COLUMNS, **options)


def block(title: str, lines: Sequence[str]) -> str:
    """Returns lines under a title."""
    return "\n  ".join([styled(f"{title}:", BOLD, sys.stdout), *lines])


def row(written: str, text: str, column: int, width: int) -> list[str]:
    """Returns the lines of a row of two columns, of which the second starts at `column`."""
    lines = textwrap.wrap(text, width - column)
    if len(written) + 4 > column:
        return [written, *(" " * (column - 2) + line for line in lines)]
    return [f"{left:{column - 2}}{line}" for left, line in zip([written, *[""] * len(lines)], lines, strict=False)]


def wrapped(command: str, width: int) -> list[str]:
    """Splits a command into lines as a shell takes them."""
    lines = [""]
    for word in _WORD.findall(command):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
