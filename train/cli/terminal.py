"""Text for a terminal: without control codes from elsewhere, coloured if the user likes, and in lines that fit."""

import contextlib
import errno
import io
import os
import re
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterator, Sequence

from attention.errors import UsageError, visible

COLUMNS, WIDEST = 80, 120  # of help and logs, and of a run's lines on a wide terminal
BOLD, RED = "1", "1;31"
UNREAD = 128 + signal.SIGPIPE  # a shell's exit code for a program whose reader has gone
_STYLES = re.compile(r"(\x1b\[[\d;]*[A-Za-z]|\r)")  # codes of colours and progress bars
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")


class Outlet(io.FileIO):
    """The file of a standard stream, which drops everything after its first error.

    Unless the program is `lasting`, the error ends it: as SIGPIPE would where the reader has gone, such as `head`, else
    as a `UsageError`. `error` is None before.
    """

    def __init__(self, descriptor: int, lasting: bool):
        super().__init__(descriptor, "w", closefd=False)
        self.lasting, self.error = lasting, None

    def write(self, data: bytes | memoryview) -> int | None:
        """Writes bytes, or drops them."""
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
                if isinstance(error, BrokenPipeError) and not self.lasting:
                    raise SystemExit(UNREAD) from error
                if not self.lasting:
                    raise UsageError(
                        f"The standard output cannot be written ({error.strerror}); free space there, or send it "
                        "elsewhere."
                    ) from error
        return memoryview(data).nbytes


class Screen(io.TextIOWrapper):
    """A standard stream that escapes what would steer a terminal.

    If it is `verbatim`, it escapes nothing unless it is a terminal. See `Outlet` for `lasting`.
    """

    def __init__(self, stream: io.TextIOWrapper, lasting: bool, verbatim: bool):
        flushing = {"line_buffering": stream.line_buffering, "write_through": stream.write_through}
        self._outlet = Outlet(stream.fileno(), lasting)
        file = io.BufferedWriter(self._outlet)
        super().__init__(file, encoding=stream.encoding, errors="backslashreplace", **flushing)
        self._styles, self._verbatim = stream.isatty(), verbatim and not stream.isatty()

    def write(self, text: str) -> int:
        """Writes a text; a terminal also gets the codes of colours and progress bars."""
        parts = _STYLES.split(text) if self._styles else [text]
        parts[::2] = parts[::2] if self._verbatim else map(visible, parts[::2])
        super().write("".join(parts))
        return len(text)

    def finish(self) -> None:
        """Writes what is left; if a lasting program went on although not all could be written, says so."""
        with contextlib.suppress(UsageError, SystemExit):
            self.flush()
        error = self._outlet.error
        if self._outlet.lasting and error and error.errno not in (errno.EPIPE, errno.EBADF):
            print(f"Not all that was printed could be written ({error.strerror}).", file=sys.stderr)


@contextlib.contextmanager
def screens(lasting: bool, verbatim: bool) -> Iterator[None]:
    """Makes stdout and stderr, even closed ones, a `Screen` each; what replaces them, as in a notebook, stays.

    A `lasting` program goes on where stdout cannot be written, and every program goes on without stderr. A `verbatim`
    stdout is a text that the user asked for, to be kept unchanged.
    """
    _take_standard_descriptors()
    with contextlib.ExitStack() as kept:
        for name, options in {"stderr": (True, False), "stdout": (lasting, verbatim)}.items():
            before = getattr(sys, name)
            if before is getattr(sys, f"__{name}__"):
                screen = Screen(before or io.TextIOWrapper(io.FileIO(_unwritable(), "w", closefd=False)), *options)
                setattr(sys, name, screen)
                kept.callback(setattr, sys, name, before)
                kept.callback(screen.finish)
        yield


def _take_standard_descriptors() -> None:
    """Opens standard descriptors that are closed, so that no file of the run gets their numbers and the output."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            _unwritable()  # takes the lowest free number


def _unwritable() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def styled(text: str, style: str, stream: io.TextIOBase) -> str:
    """Gives a text an ANSI style, such as `BOLD`, if the stream shows colours."""
    return f"\x1b[{style}m{text}\x1b[0m" if coloured(stream) else text


def coloured(stream: io.TextIOBase) -> bool:
    """Tells whether a stream is a terminal whose user wants colours (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def filled(text: str) -> str:
    """Wraps a line to the terminal's width and indents all lines but the first, without breaking paths."""
    options = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(visible(text), width(WIDEST), **options)


def width(most: int = COLUMNS) -> int:
    """Says how many columns to fill: the terminal's, but at most so many; `COLUMNS` where there is no terminal."""
    return min(shutil.get_terminal_size((COLUMNS, 24)).columns, most)


def counted(number: int, noun: str) -> str:
    """Writes a number with its noun, such as `1 seed` or `3 seeds`."""
    return f"{number} {noun}" + "s" * (number != 1)


def block(title: str, lines: Sequence[str]) -> str:
    """Puts lines under a title."""
    return "\n  ".join([styled(f"{title}:", BOLD, sys.stdout), *lines])


def row(written: str, text: str, column: int, width: int) -> list[str]:
    """Lays out a row of two columns, the second of which starts at `column`."""
    lines = textwrap.wrap(text, width - column)
    if len(written) + 4 > column:
        return [written, *(" " * (column - 2) + line for line in lines)]
    return [f"{left:{column - 2}}{line}" for left, line in zip([written, *[""] * len(lines)], lines, strict=False)]


def wrapped(command: str, width: int) -> list[str]:
    """Splits a command into lines that a shell joins again."""
    lines = [""]
    for word in _WORD.findall(command):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines
