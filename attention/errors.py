"""Errors for users. Each is one sentence with the offending value, the valid values and what to do."""

import difflib
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType

HERE = Path(__file__).parents[1]  # where all packages of the bench are
WORD, MESSAGE = 400, 4000  # the most characters of one word, and of all words; a path may have 255 in each of its parts
MANY, NEAREST = 20, 3  # of more valid names than the first, an error lists only the nearest, where so many are near

_STEERING = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


class UsageError(ValueError):
    """A mistake of the caller, described in one sentence; command lines print it without a traceback.

    What the caller gave may be a megabyte: each long word and the whole sentence are `shortened`.
    """

    def __init__(self, sentence: str):
        super().__init__(shortened(sentence))


def printable(text: str) -> str:
    """Escapes what UTF-8 cannot encode, which names of files may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def visible(text: str) -> str:
    """Escapes what would steer a terminal or turn the direction of a line, and what `printable` escapes."""
    return _STEERING.sub(lambda control: repr(control[0])[1:-1], printable(text))


def in_line(text: str) -> str:
    """Escapes tabs and ends of lines too, for a text that is part of a line, such as a cell of a table."""
    return visible(text).replace("\n", r"\n").replace("\t", r"\t")


def shortened(text: str) -> str:
    """Puts a text on one line, and cuts the middle out of words above `WORD` characters and of all above `MESSAGE`."""
    line = re.sub(r"\s*\n\s*", " ", visible(text))
    return _cut(re.sub(rf"\S{{{WORD + 1},}}", lambda word: _cut(word[0], WORD), line), MESSAGE)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}[... {len(text)} characters ...]{text[-most // 4 :]}"


def brief(error: Exception) -> str:
    """Takes the first line of a library's message, for use inside a sentence."""
    return str(error).strip().partition("\n")[0].rstrip(".:") or type(error).__name__


def check_known(kind: str, value: str, valid: Collection[str]) -> None:
    """Raises the error of `unknown` where a name is not in `valid`."""
    if value not in valid:
        raise unknown(kind, value, valid)


def listed(names: Sequence[str], most: int) -> str:
    """Joins the first `most` names by commas, and says how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class UnsupportedError(UsageError):
    """A mechanism or implementation does not support the request; no part of a request is ignored silently."""


def unknown(kind: str, value: object, valid: Iterable[str]) -> UsageError:
    """Makes the error for a name that is not in `valid`; it suggests the nearest valid name, and names the others.

    Args:
      kind: The kind of thing that is named, as it reads in a sentence ("attention mechanism").
    """
    valid = sorted(valid)
    short = [name for name in valid if _initials(name) == str(value)]
    nearest = [*short, *difflib.get_close_matches(str(value), valid, n=NEAREST)][:NEAREST]
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    names = f"Valid: {', '.join(valid) or 'none'}"
    if len(valid) > MANY and len(nearest) == NEAREST:
        names = f"Nearest of {len(valid)}: {', '.join(nearest)}"
    return UsageError(f"Unknown {kind} {value!r}.{hint} {names}.")


def _initials(name: str) -> str:
    """Shortens the last part of a field's name: `optimizer.lr` for `optimizer.learning_rate`."""
    head, dot, last = name.rpartition(".")
    return head + dot + "".join(word[:1] for word in last.split("_")) if "_" in last else name


def explain_hidden(packages: Sequence[str] = ("models", "train")) -> None:
    """Adds the remedy to the error of a script whose own files hide these packages of ours from an import.

    Python's sentence says what it did not find, and not that two packages share a name. A script that imports what it
    means never sees this, whatever its files are called.
    """
    hiding = {name: place for name in packages if (place := _place(name)) not in (None, HERE / name)}
    report = sys.excepthook

    def explained(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        name = (error.name or "") if isinstance(error, ImportError) else ""
        ours = HERE / name.replace(".", "/")
        place = hiding.get(name.partition(".")[0])
        if place and (ours.is_dir() or ours.with_suffix(".py").is_file()):
            error.add_note(
                f"{place} hides the attention bench's {name}. If you meant that one, rename yours, or move it into a "
                "package of yours."
            )
        report(kind, error, trace)

    if hiding:
        sys.excepthook = explained


def _place(name: str) -> Path | None:
    """Finds the folder of a package, or the file of a module, on the path; nothing is imported."""
    spec = PathFinder.find_spec(name)
    return Path(next(iter(spec.submodule_search_locations or ()), spec.origin)) if spec else None
